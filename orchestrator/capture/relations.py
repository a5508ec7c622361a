"""Which tensor of the specification a rank's tensor is: from layouts, batch declarations and declared means.

A tensor that only some ranks hold, and an output that only some leave, are related on those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from certificates.errors import FormatError
from certificates.plan import placements as placed
from certificates.plan.affine import Range
from certificates.plan.plan import Mesh, RankClass, Relation
from certificates.plan.program import Program
from certificates.plan.types import TensorType

from .buckets import relations
from .counts import Counts
from .definition import Definition
from .errors import CaptureError, DefinitionError, LayoutError, gathered
from .fitting import Sample
from .layouts import Layout
from .placing import Placement, agree, compare, derive, pieces
from .renaming import Renamed

_A_LAYOUT = (
    'layouts={"name": {"axis": dimension}}, {"name": {}} where every rank holds all of it; or cut it out of '
    "the model's own tensor"
)
_NO_BUCKET = ": its Bucket is not that of the ranks' alone, as the single device has a tensor of this name"
_ANOTHER_NAME = "another name for what the ranks keep in pieces: of their parameter, or key of their state"
_ON_SOME_RANK = (
    "the state on a rank: all of it, or this rank's shard of each (fully_shard, DTensor), or a "
    "chunk of a flat "
    "tensor of all (Definition.buckets, examples/models/ddp_zero1.py)"
)


class Relations:
    """Input and output relations from layouts, batch declarations and declared means."""

    def __init__(
        self,
        definition: Definition,
        mesh: Mesh,
        spec: Program,
        classes: Sequence[RankClass],
        traces: Sequence[Sample],
        boxes: Sequence[Mapping[str, Range]],
        renamed: Renamed,
        counts: Counts,
    ) -> None:
        self._definition, self._mesh, self._spec, self._classes = definition, mesh, spec, classes
        self._traces, self._boxes = traces, boxes
        self._renamed, self._counts = renamed, counts
        self._buckets = {n: b for n, b in definition.buckets.items() if n not in counts.held}

    def inputs(self) -> tuple[Relation, ...]:
        makers = [
            functools.partial(self._states, n, t.shape, left=False)
            for n, t in self._spec.inputs.items()
            if self._same(n)
        ]
        states = _each(makers)
        types = {b: [c.program.inputs[b] for c in self._classes] for b in self._buckets}
        return (*states, *self._chunks(types))

    def outputs(self) -> tuple[Relation, ...]:
        types = self._spec.types()
        makers = [
            functools.partial(self._states, name, types[value].shape, left=True)
            if name in self._spec.inputs
            else functools.partial(self._result, name)
            for name, value in self._spec.outputs.items()
            if self._same(name)
        ]
        states = _each(makers)
        programs = [c.program for c in self._classes]
        held = {b: [p.types()[p.outputs[b]] for p in programs] for b in self._buckets}
        return (*states, *self._chunks(held))

    def _same(self, name: str) -> bool:
        """Has the plan a tensor of this name, or must it have one?"""
        bucketed = {t for bucket in self._buckets.values() for t in bucket.tensors}
        return name not in bucketed or any(name in c.program.inputs for c in self._classes)

    def _chunks(self, types: Mapping[str, Sequence[TensorType]]) -> tuple[Relation, ...]:
        shapes = {name: type_.shape for name, type_ in self._spec.inputs.items()}
        found: list[Relation] = []
        for name, bucket in self._buckets.items():
            found += relations(name, bucket, shapes, self._mesh, self._classes, types[name])
        return tuple(found)

    def _states(self, name: str, shape: tuple[int, ...], *, left: bool) -> list[Relation]:
        """What ranks hold of a state, under its own name and under others."""
        holders = [c for c in self._classes if name in c.program.inputs]
        found = [self._state(name, shape, holders)] if holders else []
        found += self._renamed.relations(name, shape, self._mesh, self._classes, self._boxes, left=left)
        found += self._counts.relations(name, self._mesh, self._classes, left=left)
        if not found:
            raise LayoutError(
                "the parallel model has no such tensor on any rank", tensor=name, instead=_ON_SOME_RANK
            )
        return found

    def _state(self, name: str, shape: tuple[int, ...], holders: Sequence[RankClass]) -> Relation:
        kind, _, rest = name.partition(".")
        if kind == "batch":
            shards = self._definition.batch[rest].shard
            return self._relate(name, shape, Placement(shards, tuple(shards)), holders)
        layouts = {t.rank: t.layouts[name] for t in self._traces if t.rank is not None and name in t.layouts}
        if not layouts:
            return self._relate(name, shape, Placement({}, ()), holders)
        first = next(iter(layouts.values()))
        said = (first.shards, first.order, first.summed, first.joint)
        if any((x.shards, x.order, x.summed, x.joint) != said for x in layouts.values()):
            raise LayoutError("ranks lay it out differently", tensor=name)
        if first.summed:
            assert first.shards is not None
            placement = Placement(first.shards, first.order, first.joint)
            return self._relate(name, shape, placement, holders, first.summed)
        source = first.source(name)
        cuts = {rank: layout.cut for rank, layout in layouts.items() if layout.cut is not None}
        agree(name, cuts)
        if first.shards is not None:
            placement = Placement(first.shards, first.order, first.joint)
            self._check_local(name, shape, placement)
            if source == name:
                compare(name, shape, placement, self._mesh, cuts)
        elif kind == "opt" and self._whole(source) and all(x.local == shape for x in layouts.values()):
            placement = Placement({}, ())  # a moment of a shape of its own, such as a factor
        else:
            self._need_cuts(name, layouts)
            derived = derive(source, shape, self._mesh, cuts)
            if derived is None:
                return replace(pieces(source, self._mesh, holders, cuts, self._boxes), spec=name, plan=name)
            placement = derived
        return self._relate(name, shape, placement, holders)

    def _whole(self, parameter: str) -> bool:
        """Does every traced rank hold all of a parameter?"""
        held = {
            t.rank: t.layouts[parameter]
            for t in self._traces
            if parameter in t.layouts and t.rank is not None
        }
        if not held or parameter not in self._spec.inputs or any(x.summed for x in held.values()):
            return False
        cuts = {rank: x.cut for rank, x in held.items() if x.cut is not None and x.traced}
        said = all(x.shards == {} or rank in cuts for rank, x in held.items())
        return said and derive(parameter, self._spec.inputs[parameter].shape, self._mesh, cuts) == Placement(
            {}, ()
        )

    def _need_cuts(self, name: str, layouts: Mapping[int, Layout]) -> None:
        problems: list[CaptureError] = []
        for rank, layout in layouts.items():
            if not layout.traced:
                cut = layout.cut
                why = "" if cut is None else f": it {cut.why}"
                bucket = name in (self._definition.buckets or ())
                problems.append(
                    LayoutError(
                        "a plain tensor without a declared layout; see Definition.layouts"
                        f"{_NO_BUCKET if bucket else why}",
                        tensor=name,
                        rank=rank,
                        frame=None if cut is None else cut.frame,
                        instead=_ANOTHER_NAME if bucket else _A_LAYOUT,
                    )
                )
        if problems:
            raise gathered(problems)

    def untraced(self) -> list[str]:
        """Parameters and buffers whose relation rests on a declaration, at any rank."""
        return [
            name
            for name in (*self._spec.inputs, *self._buckets)
            if name.startswith(("params.", "buffers."))
            and self._same(name)
            and (
                name in self._buckets  # chunks are not compared with what they list
                or not (self._renamed.under(name) or any(name in t.layouts for t in self._traces))
                or not all(t.layouts[name].traced for t in self._traces if name in t.layouts)
            )
        ]

    def _relate(
        self,
        name: str,
        shape: tuple[int, ...],
        placement: Placement,
        holders: Sequence[RankClass],
        summed: tuple[str, ...] = (),
    ) -> Relation:
        placements: dict[str, placed.Placement] = {
            a: placed.Shard(dim) for a, dim in placement.shards.items()
        }
        placements |= {axis: placed.Partial("add") for axis in summed}
        full = [*placement.order, *(a for a in self._mesh.axes if a not in placement.order)]
        try:
            return placed.relate(
                name, shape, placements, self._mesh, holders, order=full, joint=placement.joint
            )
        except FormatError as error:
            raise LayoutError(str(error), tensor=name) from error

    def _check_local(self, name: str, shape: tuple[int, ...], placement: Placement) -> None:
        """The shape of every traced shard is the one its layout implies."""
        for traced in self._traces:
            assert traced.rank is not None
            if name not in traced.layouts:
                continue
            local = [size for _, size in placement.box(shape, self._mesh, traced.rank)]
            if tuple(local) != traced.layouts[name].local:
                raise LayoutError(
                    f"holds shape {list(traced.layouts[name].local)} where its layout implies {local}",
                    tensor=name,
                    rank=traced.rank,
                    instead="a layout that says how parallelize cuts it: {axis: dimension}, major axis first",
                )

    def _result(self, name: str) -> list[Relation]:
        axes = self._definition.mean_over.get(name, ())
        holders = [c for c in self._classes if name in c.program.outputs]
        missing = self._absent(holders, axes)
        if missing:
            raise DefinitionError(
                f"the step of class {missing[0]} does not return it, the single-device step does"
                + (f", and it is a mean over {', '.join(axes)}" if holders else ""),
                tensor=name,
                instead="the same names from step and parallel_step",
            )
        ranks = Fraction(1)
        for axis in axes:
            ranks *= self._mesh.axes[axis]
        value = self._spec.outputs[name]
        placements = {axis: placed.Partial("add") for axis in axes}
        shape = self._spec.types()[value].shape
        return [placed.relate(name, shape, placements, self._mesh, holders, coef=ranks)]

    def _absent(self, holders: Sequence[RankClass], axes: Sequence[str]) -> list[str]:
        """Classes that must return an output: some must, and all along ``axes`` if one there does."""
        along = [a for a in self._mesh.axes if a not in axes]
        return [
            cls.name
            for cls in self._classes
            if cls not in holders
            and (
                not holders
                or any(
                    all(h.box[a][0] < cls.box[a][1] and cls.box[a][0] < h.box[a][1] for a in along)
                    for h in holders
                    if axes
                )
            )
        ]


def _each(makers: Iterable[Callable[[], list[Relation]]]) -> list[Relation]:
    """All relations; what stands against any of them is raised at once."""
    made: list[Relation] = []
    problems: list[CaptureError] = []
    for make in makers:
        try:
            made += make()
        except CaptureError as error:
            problems.append(error)
    if problems:
        raise gathered(problems)
    return made
