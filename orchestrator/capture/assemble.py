"""From a definition to a checked plan: trace, fit classes, number collectives, relate states."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch

from certificates.errors import FormatError
from certificates.plan import placements as placed
from certificates.plan.affine import Affine, Range
from certificates.plan.checking import check_plan
from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Group, Mesh, Plan, RankClass, Relation
from certificates.plan.program import Attr, Op, Program
from certificates.plan.types import TensorType

from ..outlining.outline import outline
from .buckets import relations, split_classes
from .builder import Meeting
from .checks import check, check_names
from .definition import Definition
from .errors import CaptureError, DefinitionError, LayoutError, gathered
from .fitting import MOST, FittedClass, Grid, Sample, with_scalars
from .layouts import Layout
from .lowering import RankProgram
from .lowering.table import communicator
from .meetings import unmet
from .outputs import differences, kept
from .placing import Placement, agree, compare, derive, pieces
from .processes import survey, trace_ranks
from .shims import SHIMS
from .sources import Sources

_ON_EACH_RANK = (
    "the state on every rank: all of it, or this rank's shard of each (fully_shard, DTensor), or a "
    "chunk of a flat "
    "tensor of all (Definition.buckets, examples/models/ddp_zero1.py)"
)
#: Provenance: rendezvous, by communicator and place there, that a rank keeps although it reads no result.
FOR_OTHERS = "kept for other ranks"


def capture(
    definition: Definition,
    *,
    jobs: int | None = None,
    most: int = MOST,
    root: Path | None = None,
    report: Callable[[str], None] | None = None,
    accept: Callable[[Plan], bool] | None = None,
) -> Plan:
    """Trace the specification and a sample of ranks, and write down the plan.

    Up to ``most`` ranks of each class are traced, and those that show where classes end.
    ``root`` is the directory that source names are relative to; ``report`` is told of each traced rank. What
    repeats becomes functions; with ``accept``, what stands between is in functions too if it accepts the plan
    so (``tv-capture`` asks whether that plan has a proof: ``orchestrator.emit.provable``). Any
    step that cannot be captured exactly is a :class:`CaptureError`.
    """
    check(definition)
    workers = jobs or _cores()
    mesh = Mesh(dict(definition.mesh))

    def tracer(
        ranks: Iterable[int | None],
        known: Container[str] = (),
        needed: frozenset[Meeting] = frozenset(),
    ) -> Iterator[Sample]:
        for traced in trace_ranks(definition, ranks, workers, known, needed):
            if report is not None:
                what = "single device" if traced.rank is None else f"rank {traced.rank} of {mesh.ranks}"
                report(f"traced {what}: {traced.ops} ops")
            yield traced

    grid = Grid(mesh, tracer, most)
    found: list[Sample] = []
    try:
        found += tracer([None])
        grid.fill_alike()
    except CaptureError as error:
        rest = survey(definition, _ends(mesh, grid), workers)
        raise gathered([error, *rest, *_misnamed(definition, [*found, *grid.traces.values()])]) from error
    problems = _misnamed(definition, [*found, *grid.traces.values()])
    if problems:
        raise gathered(problems)
    assert found[0].program is not None
    fitted = grid.classes()
    single, *programs = kept(found[0].program, [f.program for f in fitted])
    fitted = [replace(f, program=p) for f, p in zip(fitted, programs, strict=True)]
    problems = differences(single, [(f"c{i}", p) for i, p in enumerate(programs)], definition.buckets)
    if problems:
        raise gathered(problems).at(definition.frame)
    sources = Sources(root or Path.cwd(), [single, *programs])
    spec = _program(single, sources)
    numbering = _Numbering()
    classes = tuple(
        RankClass(f"c{i}", dict(f.box), _program(f.program, sources, f.forms, numbering))
        for i, f in enumerate(fitted)
    )
    classes = tuple(split_classes(classes, mesh, definition.buckets))
    used = sorted({key for f in fitted for key in f.program.groups})
    boxes = [f.box for f in fitted]
    related = _Relations(definition, mesh, spec, classes, list(grid.traces.values()), boxes)
    try:
        related_inputs, related_outputs = related.inputs(), related.outputs()
    except CaptureError as error:
        raise error.at(definition.frame) from error
    plan = Plan(
        definition.name,
        mesh,
        {communicator(axes, n): Group(axes, mesh.fibres(axes)) for axes, n in used},
        sources.names,
        spec,
        classes,
        related_inputs,
        related_outputs,
        {f"batch.{n}": b.bounds for n, b in definition.batch.items() if b.bounds is not None},
        _provenance(definition, mesh, fitted, related.untraced(), grid.needed, found[0].shims),
        given=_inputs_that_stay(("batch.", "hyper."), spec, classes),
        constants=_inputs_that_stay(("buffers.",), spec, classes),
    )
    problems = unmet(plan, sources.frame)
    if problems:
        raise gathered(problems)
    try:
        check_plan(plan)
    except FormatError as error:
        raise CaptureError(f"the captured plan is not well-formed: {error}") from error
    return outline(plan, accept)


def _misnamed(definition: Definition, samples: Sequence[Sample]) -> list[CaptureError]:
    """Names in the definition that the traced single device, if it is among the samples, does not know."""
    single = next((s.program for s in samples if s.rank is None), None)
    states = {name for sample in samples for name in sample.layouts}
    return [] if single is None else check_names(definition, single, states)


def _inputs_that_stay(
    prefixes: tuple[str, ...], spec: Program, classes: Sequence[RankClass]
) -> tuple[str, ...]:
    """Inputs of these kinds that no program has as an output; every other input is a state."""
    programs = [spec, *(cls.program for cls in classes)]
    written = {name for program in programs for name in program.outputs}
    read = {name for program in programs for name in program.inputs if name.startswith(prefixes)}
    return tuple(sorted(read - written))


def _ends(mesh: Mesh, grid: Grid) -> list[int]:
    """The first and the last rank, as far as they were not traced yet."""
    traced = {sample.rank for sample in grid.traces.values()}
    return sorted({0, mesh.ranks - 1} - traced)


def obstacles(definition: Definition, jobs: int | None = None) -> CaptureError | None:
    """All that stands against a capture on the single device, the first and the last rank."""
    try:
        check(definition)
    except CaptureError as error:
        return error
    ranks = [None, *sorted({0, Mesh(dict(definition.mesh)).ranks - 1})]
    found = survey(definition, ranks, jobs or _cores())
    return gathered(found) if found else None


def _cores() -> int:
    return min(4, os.cpu_count() or 1)


def _each(makers: Iterable[Callable[[], Relation]]) -> list[Relation]:
    """All relations; what stands against any of them is raised at once."""
    made: list[Relation] = []
    problems: list[CaptureError] = []
    for make in makers:
        try:
            made.append(make())
        except CaptureError as error:
            problems.append(error)
    if problems:
        raise gathered(problems)
    return made


class _Numbering:
    """Rendezvous numbers: equal collectives at equal positions of a communicator's order meet."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, name: str, attrs: Mapping[str, Attr], operand: TensorType) -> int:
        key = (name, tuple(sorted(attrs.items())), operand)
        return self._numbers.setdefault(key, len(self._numbers))


def _program(
    program: RankProgram,
    sources: Sources,
    forms: Sequence[Affine] | None = None,
    numbering: _Numbering | None = None,
) -> Program:
    """The program with fitted scalars and rendezvous numbers; equal pure ops are merged again afterwards."""
    types = dict(program.inputs)
    ops: list[Op] = []
    names: dict[str, str] = {}
    seen: dict[object, str] = {}
    at = 0
    for draft in program.drafts:
        attrs: Mapping[str, Attr] = dict(draft.attrs)
        if forms is not None:
            fitted, used = with_scalars(draft, forms[at:])
            attrs, at = dict(fitted), at + used
        ins = tuple(names.get(v, v) for v in draft.ins)
        if draft.name in COLLECTIVES and numbering is not None:
            attrs = {**attrs, "seq": numbering.number(draft.name, attrs, types[ins[0]])}
        out = f"%{len(ops)}"
        if draft.name not in COLLECTIVES:
            out = seen.setdefault((draft.name, ins, draft.type, tuple(sorted(attrs.items()))), out)
        names[draft.out] = out
        if out in types:
            continue
        types[out] = draft.type
        ops.append(Op(out, draft.name, ins, draft.type, attrs, sources.loc(draft)))
    return Program(dict(program.inputs), tuple(ops), {n: names.get(v, v) for n, v in program.outputs.items()})


def rank_program(program: RankProgram) -> Program:
    """The program of one rank as a program of a plan, integers as traced."""
    return _program(program, Sources(Path.cwd()))


class _Relations:
    """Input and output relations from layouts, batch declarations and declared means."""

    def __init__(
        self,
        definition: Definition,
        mesh: Mesh,
        spec: Program,
        classes: Sequence[RankClass],
        traces: Sequence[Sample],
        boxes: Sequence[Mapping[str, Range]],
    ) -> None:
        self._definition, self._mesh, self._spec, self._classes = definition, mesh, spec, classes
        self._traces, self._boxes = traces, boxes

    def inputs(self) -> tuple[Relation, ...]:
        makers = [
            functools.partial(self._state, n, t.shape) for n, t in self._spec.inputs.items() if self._same(n)
        ]
        states = _each(makers)
        types = {b: [c.program.inputs[b] for c in self._classes] for b in self._definition.buckets}
        return (*states, *self._buckets(types))

    def outputs(self) -> tuple[Relation, ...]:
        types = self._spec.types()
        makers = [
            functools.partial(self._state, name, types[value].shape)
            if name in self._spec.inputs
            else functools.partial(self._result, name)
            for name, value in self._spec.outputs.items()
            if self._same(name)
        ]
        states = _each(makers)
        programs = [c.program for c in self._classes]
        held = {b: [p.types()[p.outputs[b]] for p in programs] for b in self._definition.buckets}
        return (*states, *self._buckets(held))

    def _same(self, name: str) -> bool:
        """Has the plan a tensor of this name, or must it have one?"""
        bucketed = {t for bucket in self._definition.buckets.values() for t in bucket.tensors}
        return name not in bucketed or any(name in c.program.inputs for c in self._classes)

    def _buckets(self, types: Mapping[str, Sequence[TensorType]]) -> tuple[Relation, ...]:
        shapes = {name: type_.shape for name, type_ in self._spec.inputs.items()}
        found: list[Relation] = []
        for name, bucket in self._definition.buckets.items():
            found += relations(name, bucket, shapes, self._mesh, self._classes, types[name])
        return tuple(found)

    def _state(self, name: str, shape: tuple[int, ...]) -> Relation:
        missing = [c.name for c in self._classes if name not in c.program.inputs]
        if missing:
            raise LayoutError(
                f"the parallel model has no such tensor on class {missing[0]}",
                tensor=name,
                instead=_ON_EACH_RANK,
            )
        kind, _, rest = name.partition(".")
        if kind == "batch":
            shards = self._definition.batch[rest].shard
            return self._relate(name, shape, shards, tuple(shards))
        layouts = {t.rank: t.layouts[name] for t in self._traces if t.rank is not None and name in t.layouts}
        if not layouts:
            return self._relate(name, shape, {}, ())
        first = next(iter(layouts.values()))
        if any((x.shards, x.order) != (first.shards, first.order) for x in layouts.values()):
            raise LayoutError("ranks lay it out differently", tensor=name)
        source = first.source(name)
        cuts = {rank: layout.cut for rank, layout in layouts.items() if layout.cut is not None}
        agree(name, cuts)
        if first.shards is not None:
            placement = Placement(first.shards, first.order)
            self._check_local(name, shape, placement)
            if source == name:
                compare(name, shape, placement, self._mesh, cuts)
        else:
            self._need_cuts(name, layouts)
            derived = derive(source, shape, self._mesh, cuts)
            if derived is None:
                return replace(
                    pieces(source, self._mesh, self._classes, cuts, self._boxes), spec=name, plan=name
                )
            placement = derived
        return self._relate(name, shape, placement.shards, placement.order)

    def _need_cuts(self, name: str, layouts: Mapping[int, Layout]) -> None:
        problems: list[CaptureError] = []
        for rank, layout in layouts.items():
            if not layout.traced:
                cut = layout.cut
                why = "" if cut is None else f": it {cut.why}"
                problems.append(
                    LayoutError(
                        f"a plain tensor without a declared layout; see Definition.layouts{why}",
                        tensor=name,
                        rank=rank,
                        frame=None if cut is None else cut.frame,
                        instead='layouts={"name": {"axis": dimension}}, {"name": {}} where every rank holds '
                        "all of it; or cut it out of the model's own tensor",
                    )
                )
        if problems:
            raise gathered(problems)

    def untraced(self) -> list[str]:
        """Parameters and buffers whose relation rests on a declaration, at any rank."""
        return [
            name
            for name in (*self._spec.inputs, *self._definition.buckets)
            if name.startswith(("params.", "buffers."))
            and self._same(name)
            and (
                name in self._definition.buckets  # chunks are not compared with what they list
                or not all(name in t.layouts and t.layouts[name].traced for t in self._traces)
            )
        ]

    def _relate(
        self, name: str, shape: tuple[int, ...], shards: Mapping[str, int], order: tuple[str, ...]
    ) -> Relation:
        placements = {axis: placed.Shard(dim) for axis, dim in shards.items()}
        full = [*order, *(a for a in self._mesh.axes if a not in order)]
        try:
            return placed.relate(name, shape, placements, self._mesh, self._classes, order=full)
        except FormatError as error:
            raise LayoutError(str(error), tensor=name) from error

    def _check_local(self, name: str, shape: tuple[int, ...], placement: Placement) -> None:
        """The shape of every traced shard is the one its layout implies."""
        for traced in self._traces:
            assert traced.rank is not None
            local = [size for _, size in placement.box(shape, self._mesh, traced.rank)]
            if tuple(local) != traced.layouts[name].local:
                raise LayoutError(
                    f"holds shape {list(traced.layouts[name].local)} where its layout implies {local}",
                    tensor=name,
                    rank=traced.rank,
                    instead="a layout that says how parallelize cuts it: {axis: dimension}, major axis first",
                )

    def _result(self, name: str) -> Relation:
        missing = [c.name for c in self._classes if name not in c.program.outputs]
        if missing:
            raise DefinitionError(
                f"the step of class {missing[0]} does not return it, the single-device step does",
                tensor=name,
                instead="the same names from step and parallel_step",
            )
        axes = self._definition.mean_over.get(name, ())
        ranks = Fraction(1)
        for axis in axes:
            ranks *= self._mesh.axes[axis]
        value = self._spec.outputs[name]
        placements = {axis: placed.Partial("add") for axis in axes}
        shape = self._spec.types()[value].shape
        return placed.relate(name, shape, placements, self._mesh, self._classes, coef=ranks)


def _provenance(
    definition: Definition,
    mesh: Mesh,
    fitted: Iterable[FittedClass],
    untraced: Sequence[str],
    needed: Iterable[Meeting],
    shims: Iterable[str],
) -> dict[str, object]:
    traced = sorted({rank for f in fitted for rank in f.traced})
    return {
        "torch": torch.__version__,
        "traced_ranks": [str(r) for r in traced],
        "interpolated_ranks": str(mesh.ranks - len(traced)),
        "shims": [*SHIMS, *shims],
        **{key: str(value) for key, value in definition.provenance.items()},
        **({"declared, not traced": list(untraced)} if untraced else {}),
        **({FOR_OTHERS: [f"{group} {at}" for group, at in sorted(needed)]} if needed else {}),
    }
