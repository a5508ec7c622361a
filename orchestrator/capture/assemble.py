"""From a definition to a checked plan: trace, fit classes, number collectives, relate states."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.checking import check_plan
from certificates.plan.ops import MESSAGES, PACKED
from certificates.plan.plan import Group, Mesh, Plan, RankClass
from certificates.plan.program import Attr, Op, Program
from certificates.plan.rows import REGROUP, SORT
from certificates.plan.timing import needed_version
from certificates.plan.types import TensorType

from ..outlining.outline import outline
from .buckets import split_classes
from .builder import MEETING, Draft, Met
from .checks import check, check_names
from .counts import ONE_FOR, counts
from .cutting import Cut
from .definition import Definition
from .errors import CaptureError, DefinitionError, LayoutError, gathered
from .fitting import FittedClass, Sample, with_scalars
from .grid import MOST, Grid
from .literal_rates import bound_rates
from .lowering import RankProgram
from .lowering.table import communicator
from .meetings import other_agreements, other_names, other_numbers, other_roots, unmet
from .messages import THROUGH, channel, matched, stages
from .microbatches import with_time_axis
from .outputs import differences, kept
from .packed import read_as_plain
from .placing import told_apart
from .processes import survey, trace_ranks
from .recorded import ISSUED, without_waits
from .relations import Relations
from .renaming import Renamed
from .shims import SHIMS
from .sources import Sources
from .zeroed import LEFT, begun_at_zero

#: Provenance: rendezvous, by communicator and place there, that a rank keeps although it reads no result.
FOR_OTHERS = "kept for other ranks"

_SAME_RATE = "one learning rate on both; a factor on purpose belongs to the step, where it is seen"
_SAME_ORDER = "the groups of parameters in one order on both: a learning rate is known by its group's number"


def capture(
    definition: Definition,
    *,
    jobs: int | None = None,
    most: int = MOST,
    root: Path | None = None,
    report: Callable[[str], None] | None = None,
    accept: Callable[[Plan], bool] | None = None,
    elsewhere: Callable[[Mapping[int, Sample]], CaptureError | None] = lambda _samples: None,
) -> Plan:
    """Trace the specification and a sample of ranks, and write down the plan.

    Up to ``most`` ranks of each class are traced, and those that show where classes end.
    ``root`` is the directory that source names are relative to; ``report`` is told of each traced rank. What
    repeats becomes functions; with ``accept``, what stands between is in functions too if it accepts the plan
    so (``tv-capture`` asks whether that plan has a proof: ``orchestrator.emit.provable``). ``elsewhere`` says
    what stands against the first traces of the ranks, such as that another process has others. Any step
    that cannot be captured exactly is a :class:`CaptureError`.
    """
    check(definition)
    workers = jobs or _cores()
    mesh = Mesh(dict(definition.mesh))

    def tracer(
        ranks: Iterable[int | None],
        known: Container[str] = (),
        needed: Collection[Met] = (),
    ) -> Iterator[Sample]:
        for traced in trace_ranks(definition, ranks, workers, known, needed):
            if report is not None:
                what = "single device" if traced.rank is None else f"rank {traced.rank} of {mesh.ranks}"
                report(f"traced {what}: {traced.ops} ops")
            if traced.rank is not None:
                first.setdefault(traced.rank, traced)
            yield traced

    grid = Grid(mesh, tracer, most)
    found: list[Sample] = []
    first: dict[int, Sample] = {}
    try:
        found += tracer([None])
        grid.fill()
    except CaptureError as error:
        rest = survey(definition, _ends(mesh, grid), workers)
        raise gathered([error, *rest, *_misnamed(definition, [*found, *grid.traces.values()])]) from error
    problems = _misnamed(definition, [*found, *grid.traces.values()])
    problems += _otherwise_built(found[0], grid.traces.values())
    problems += _otherwise_rated(found[0], grid.traces.values())
    another = elsewhere(first)
    problems += [] if another is None else [another]
    problems += other_names(grid.traces.values())
    problems += other_agreements(grid.traces.values())
    problems += other_roots(grid.traces.values())
    if problems:
        raise gathered(problems)
    assert found[0].program is not None
    fitted, messages = matched(mesh, grid.classes())
    single, *programs = kept(found[0].program, [f.program for f in fitted])
    (single, *programs), zeroed = begun_at_zero(single, programs, _zero([found[0], *grid.samples()]))
    samples = found[0], *grid.traces.values()
    (single, *programs), bound = bound_rates(single, programs, [s.rates for s in samples])
    fitted = [replace(f, program=p) for f, p in zip(fitted, programs, strict=True)]
    renamed = Renamed(single.inputs, definition.buckets, grid.samples())
    one = counts(single.inputs, definition.buckets, grid.samples(), renamed.numbers())
    if one.held:
        single = one.joined(single)
        renamed = Renamed(single.inputs, {*definition.buckets, *one.names()}, grid.samples())
    own = {*definition.buckets, *renamed.complete(single.outputs), *one.complete(single.outputs)}
    problems = differences(single, [(f"c{i}", p) for i, p in enumerate(programs)], own)
    if problems:
        raise gathered(problems).at(definition.frame)
    sources = Sources(root or Path.cwd(), [single, *programs])
    spec = one.left(_program(single, sources))
    used = sorted({key for f in fitted for key in f.program.groups})
    over = {communicator(axes, n): axes for axes, n in used}
    numbering = _Numbering(messages, stages(fitted, messages), over)
    classes = tuple(
        RankClass(f"c{i}", dict(f.box), _program(f.program, sources, f.forms, numbering.of(i)))
        for i, f in enumerate(fitted)
    )
    held = [c.box for c in classes]
    unlike = (*renamed.unlike(mesh, held), *told_apart(mesh, held, _cut(spec, grid.samples())))
    seen = tuple(split_classes(classes, mesh, definition.buckets, unlike))
    classes = tuple(replace(c, program=without_waits(c.program)) for c in seen)
    related = Relations(definition, mesh, spec, classes, grid.samples(), grid.boxes(), renamed, one)
    try:
        related_inputs, related_outputs = related.inputs(), related.outputs()
    except CaptureError as error:
        raise error.at(definition.frame) from error
    shims = sorted({shim for sample in samples for shim in sample.shims})
    taken = {said for sample in samples for said in sample.assumed}
    assumed = sorted({*taken, *bound, *map(LEFT.format, zeroed)})
    plan = Plan(
        definition.name,
        mesh,
        {communicator(axes, n): Group(axes, mesh.fibres(axes)) for axes, n in used},
        sources.names,
        spec,
        classes,
        related_inputs,
        related_outputs,
        {f"batch.{n}": b.bounds for n, b in definition.batch.items() if b.bounds is not None}
        | {name: bounds for name, bounds in found[0].ranges.items() if name in spec.inputs},
        _provenance(definition, mesh, fitted, related.untraced(), grid.needed, shims, assumed)
        | _channels(fitted, messages)
        | ({ONE_FOR: one.told()} if one.held else {}),
        given=_inputs_that_stay(("batch.", "hyper."), spec, classes),
        constants=_inputs_that_stay(("buffers.",), spec, classes),
    )
    plan = read_as_plain(plan, sources)
    problems = unmet(plan, sources.frame) or other_numbers(mesh, grid.traces.values())
    if problems:
        raise gathered(problems)
    plan = replace(plan, version=needed_version(plan))
    try:
        check_plan(plan)
    except FormatError as error:
        raise CaptureError(f"the captured plan is not well-formed: {error}") from error
    return outline(with_time_axis(plan, {c.name: c.program for c in seen}), accept)


def _zero(samples: Sequence[Sample]) -> set[str]:
    """Buffers that are zero before the first step wherever they are inputs."""
    inputs = [(s, s.program.inputs if s.program is not None else s.layouts) for s in samples]
    every = set().union(*(s.zeros for s in samples)) - _summed(samples)
    return {n for n in every if all(n in s.zeros for s, of in inputs if n in of)}


def _summed(samples: Iterable[Sample]) -> set[str]:
    """The tensors of which ranks hold summands: nothing follows for one of these from what their sum is."""
    return {name for s in samples for name, layout in s.layouts.items() if layout.summed}


def _cut(spec: Program, samples: Sequence[Sample]) -> dict[str, tuple[tuple[int, ...], dict[int, Cut]]]:
    """Shapes and cuts of the inputs of which each traced rank was seen to take its part."""
    found = {}
    for name, type_ in spec.inputs.items():
        laid = {s.rank: s.layouts[name] for s in samples if s.rank is not None and name in s.layouts}
        cuts = {rank: x.cut for rank, x in laid.items() if x.cut is not None and x.cut.parts and x.traced}
        if laid and len(cuts) == len(laid):
            found[name] = type_.shape, cuts
    return found


def _misnamed(definition: Definition, samples: Sequence[Sample]) -> list[CaptureError]:
    """Names in the definition that the traced single device, if it is among the samples, does not know."""
    single = next((s.program for s in samples if s.rank is None), None)
    states = {name for sample in samples for name in sample.layouts}
    return [] if single is None else check_names(definition, single, states)


def _otherwise_built(single: Sample, ranks: Iterable[Sample]) -> list[CaptureError]:
    """Ranks whose ``build`` gives a buffer integers of another range than the single device's in every step:
    theirs were lowered on the strength of it, and the single device's is what the plan declares."""
    problems: list[CaptureError] = []
    for sample in ranks:
        for name, (low, high) in sample.ranges.items():
            expected = single.ranges.get(name)
            if expected != (low, high) and sample.rank is not None:
                where = "changes them" if expected is None else f"has them in [{expected[0]}, {expected[1]})"
                error = LayoutError(
                    f"build makes integers in [{low}, {high}) of it; the single device {where}",
                    tensor=name,
                    instead="the same build on every rank, and steps that do the same to its buffers",
                )
                problems.append(error.at_rank(sample.rank))
    return problems


def _otherwise_rated(single: Sample, ranks: Iterable[Sample]) -> list[CaptureError]:
    """Ranks whose optimizer is made with another learning rate than the single device's: the plan has one
    input for both, so nothing else would tell them apart."""
    return [
        DefinitionError(
            f"the optimizer is made with {_rate(rate)} here, with {_rate(single.rates[name])} on the single "
            "device",
            tensor=name,
            instead=_SAME_ORDER if _alike(sample.rates, single.rates) else _SAME_RATE,
        ).at_rank(sample.rank)
        for sample in ranks
        for name, rate in sample.rates.items()
        if sample.rank is not None and name in single.rates and single.rates[name] != rate
    ]


def _alike(rates: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Are these the same numbers, in another order of the groups?"""
    return sorted(rates.values()) == sorted(others.values())


def _rate(number: float) -> str:
    return "a tensor whose value no trace has" if math.isnan(number) else f"{number:g}"


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


class _Numbering:
    """Rendezvous numbers: equal collectives at equal positions of a communicator's order meet, in one stage.

    Messages have the first numbers; ``messages`` are those by class and result, ``stages`` says where a class
    stands along axes that messages cross (ADR 0160), ``over`` of which axes a communicator is.
    """

    def __init__(
        self,
        messages: Mapping[tuple[int, str], int],
        stages: Sequence[Mapping[str, int]],
        over: Mapping[str, Sequence[str]],
    ) -> None:
        self._messages, self._first = messages, len(set(messages.values()))
        self._stages, self._over = stages, over
        self._numbers: dict[tuple[object, ...], int] = {}
        self._class = 0

    def of(self, number: int) -> _Numbering:
        """For this class."""
        self._class = number
        return self

    def attrs(self, draft: Draft, attrs: Mapping[str, Attr], operand: TensorType | None) -> dict[str, Attr]:
        """The attributes that a collective or a message has in a plan."""
        if draft.name in MESSAGES:
            end = "to" if draft.name == "send" else "from"
            seq = self._messages[self._class, draft.out]
            return {"seq": seq, end: attrs[end], **{key: attrs[key] for key in ISSUED}}
        over = self._over[str(draft.attr("group"))]
        stage = tuple((axis, n) for axis, n in self._stages[self._class].items() if axis not in over)
        key = (draft.name, tuple(sorted(attrs.items())), operand, stage)
        known = PACKED[draft.name][1] if draft.name in PACKED else attrs
        said = {k: v for k, v in attrs.items() if k in known}
        return {**said, "seq": self._first + self._numbers.setdefault(key, len(self._numbers))}


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
    rest = None if forms is None else iter(forms)
    for draft in program.drafts:
        attrs: Mapping[str, Attr] = dict(draft.attrs if rest is None else with_scalars(draft, rest))
        ins = tuple(names.get(v, v) for v in draft.ins)
        if draft.name in MEETING | MESSAGES and numbering is not None:
            attrs = numbering.attrs(draft, attrs, types[ins[0]] if ins else None)
        out = f"%{len(ops)}"
        if draft.name not in MEETING | MESSAGES | {SORT, REGROUP}:  # two are two orders
            out = seen.setdefault((draft.name, ins, draft.type, tuple(sorted(attrs.items()))), out)
        names[draft.out] = out
        if out in types:
            continue
        types[out] = draft.type
        ops.append(Op(out, draft.name, ins, draft.type, attrs, sources.loc(draft)))
    return Program(dict(program.inputs), tuple(ops), {n: names.get(v, v) for n, v in program.outputs.items()})


def rank_program(program: RankProgram) -> Program:
    """The program of one rank as a program of a plan, integers as traced."""
    return without_waits(_program(program, Sources(Path.cwd())), issued=True)


def _channels(fitted: Sequence[FittedClass], numbers: Mapping[tuple[int, str], int]) -> dict[str, list[str]]:
    """Where each message goes through; a launch is compared with it."""
    found = {
        numbers[i, draft.out]: channel(draft)
        for i, f in enumerate(fitted)
        for draft in f.program.drafts
        if draft.name in MESSAGES
    }
    return {THROUGH: [f"{seq} {place}" for seq, place in sorted(found.items())]} if found else {}


def _provenance(
    definition: Definition,
    mesh: Mesh,
    fitted: Iterable[FittedClass],
    untraced: Sequence[str],
    needed: Iterable[Met],
    shims: Iterable[str],
    assumed: Sequence[str],
) -> dict[str, object]:
    traced = sorted({rank for f in fitted for rank in f.traced})
    return {
        "torch": torch.__version__,
        "traced_ranks": [str(r) for r in traced],
        "interpolated_ranks": str(mesh.ranks - len(traced)),
        "shims": [*SHIMS, *shims],
        **({"assumed": list(assumed)} if assumed else {}),
        **{key: str(value) for key, value in definition.provenance.items()},
        **({"declared, not traced": list(untraced)} if untraced else {}),
        **({FOR_OTHERS: [f"{group} {at} {op}" for group, at, op in sorted(needed)]} if needed else {}),
    }
