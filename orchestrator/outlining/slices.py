"""Repetitions of a pipeline: each layer is run by the classes of one stage, and one body serves all stages.

Classes that differ only in their coordinate along one mesh axis have one *role*. What repeats in one program
of a role is looked for in all of them, wherever it stands: a stage may hold few layers, or several stretches
of them, and what it receives is made in another way than what it hands on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from certificates.plan.affine import Affine
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Box, Plan, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.schedule import Schedule
from certificates.plan.slices import in_slices

from .flow import Flow, head
from .layers import Labels, layers
from .packing import apart, parts
from .preludes import preludes, sequels
from .regions import Instance, Region
from .splits import incomplete, split

#: So many ops of something else may stand amid a repetition.
_AMID = 8
#: So many ways are tried to tell a repetition from what stands amid it.
_WAYS = 256
#: Work that happens once before all runs, in every run, and once when runs are joined.
BEFORE, EACH, AFTER = range(3)


@dataclass(frozen=True)
class Role:
    """Classes with one body of each function; of functions at a slice the box on all other axes."""

    name: str
    classes: tuple[str, ...]
    box: Box


def one_each(plan: Plan) -> list[Role]:
    """Every class has a body of its own."""
    return [Role(c.name, (c.name,), {}) for c in plan.classes]


def along(plan: Plan) -> list[str]:
    """Mesh axes of which every class has one coordinate, and not all the same."""
    sides = {axis: {c.box[axis] for c in plan.classes} for axis in plan.mesh.space}
    return [a for a, found in sides.items() if len(found) > 1 and all(hi == lo + 1 for lo, hi in found)]


def roles(plan: Plan, axis: str) -> list[Role]:
    """Classes that differ along this axis only."""
    boxes: dict[tuple[object, ...], list[RankClass]] = {}
    for cls in plan.classes:
        boxes.setdefault(tuple(sorted((a, s) for a, s in cls.box.items() if a != axis)), []).append(cls)
    taken = {c.name for c in plan.classes}
    names = (name for i in range(len(taken) + len(boxes)) if (name := f"r{i}") not in taken)
    return [
        Role(name, tuple(c.name for c in of), {a: s for a, s in of[0].box.items() if a != axis})
        for name, of in zip(names, boxes.values(), strict=False)
    ]


def sliced(
    plan: Plan,
    programs: Mapping[str, Program],
    found: Sequence[Role],
    axis: str,
    around: bool = False,
    without: Container[str] = (),
) -> dict[str, list[Region]]:
    """What repeats in the specification (``s``) and in all roles, each layer in one slice; or nothing.

    So is what schedules leave for later, and what stands ``around`` it; but for what has one of the names in
    ``without``.
    """
    rows = {owner: apart(program) for owner, program in programs.items()}
    regions = {"s": layers(Flow(programs["s"], apart=rows["s"]), False)}
    for role in found:
        flows = {c: Flow(programs[c], phases(plan, c, programs[c]), rows[c]) for c in role.classes}
        most = _matched(flows, regions) if any(rows.values()) else _most(flows, len(regions["s"]))
        if not most:
            return {}
        regions |= most
    if any(rows.values()):
        cut = [
            part
            for k in range(len(regions["s"]))
            for part in parts({o: of[k] for o, of in regions.items()}, timed=True)
        ]
        regions = {owner: [part[owner] for part in cut] for owner in regions}
    alike = [("s",), *(role.classes for role in found)]
    flat: set[int] = set()
    for k in range(len(regions["s"])):
        made = [] if f"left {k}" in without else list(split(plan, regions, alike, EACH, k))
        _extend(regions, made, without)
        if not made and incomplete(plan, regions, alike, EACH, k):
            flat.add(k)
    if around and regions["s"]:
        _extend(regions, sequels(plan, regions, alike, AFTER), without)
        _extend(regions, preludes(plan, regions, alike, (BEFORE, AFTER)), without)
    for k, region in enumerate(regions["s"]):
        labels = () if k in flat else tuple(region.instances)
        held = {n for n in labels if _in_one_slice(plan, regions, found, axis, k, n)}
        for of in regions.values():
            of[k].instances = {n: i for n, i in of[k].instances.items() if n in held}
    kept = [k for k, region in enumerate(regions["s"]) if region.instances]
    return {owner: [of[k] for k in kept] for owner, of in regions.items()} if kept else {}


def _most(flows: Mapping[str, Flow], kinds: int) -> dict[str, list[Region]]:
    """What repeats in the programs of a role, by the patterns of that one of them, of so many kinds, of which
    most is found: a schedule may leave a part of a layer for later in some stages."""
    tried: list[list[tuple[object, object]]] = []
    best: dict[str, list[Region]] = {}
    for flow in flows.values():
        patterns = _patterns(flow)
        key: list[tuple[object, object]] = [(p.ops, p.types) for p in patterns]
        if len(patterns) != kinds or key in tried:
            continue
        tried.append(key)
        made = {c: _repeated(of, patterns) for c, of in flows.items()}
        if _count(made) > _count(best):
            best = made
    return best


def _matched(flows: Mapping[str, Flow], regions: dict[str, list[Region]]) -> dict[str, list[Region]]:
    """What repeats in the programs of a role, beside those of the ``regions`` found so far that do most alike
    in the same layers; regions without such a one are dropped.

    Stages have layers of several kinds, and not all kinds: each has patterns that others have not.
    """
    patterns: list[Instance] = []
    for flow in flows.values():
        known = {m for r in _repeated(flow, patterns) for i in r.instances.values() for m in i.members}
        patterns += [p for p in _patterns(flow) if known.isdisjoint(p.members)]
    made = {c: _repeated(flow, patterns) for c, flow in flows.items()}
    ranked: list[tuple[float, int, int]] = []
    for i, pattern in enumerate(patterns):
        labels = {n for of in made.values() for n in of[i].instances}
        for k, region in enumerate(regions["s"]):
            both = len(labels.intersection(region.instances)) / len(labels.union(region.instances))
            usual = next(iter(region.instances.values()))
            ranked.append((both * _likeness(pattern, usual), i, k))
    pairs: dict[int, int] = {}
    for score, i, k in sorted(ranked, reverse=True):
        if score > 0 and k not in pairs and i not in pairs.values():
            pairs[k] = i
    for owner, of in regions.items():
        regions[owner] = [of[k] for k in sorted(pairs)]
    return {c: [of[pairs[k]] for k in sorted(pairs)] for c, of in made.items()} if pairs else {}


def _likeness(one: Instance, other: Instance) -> float:
    """How much two repetitions have in common, from 0 to 1, by the names of their ops."""
    a, b = (Counter(op.name for op in i.templates if op.name not in COLLECTIVES) for i in (one, other))
    return (a & b).total() / max((a | b).total(), 1)


def _count(found: Mapping[str, Sequence[Region]]) -> int:
    return sum(len(region.instances) for of in found.values() for region in of)


def _extend(
    regions: Mapping[str, list[Region]], around: Iterable[Mapping[str, Region]], without: Container[str]
) -> None:
    for made in list(around):
        for owner, region in made.items() if made["s"].name not in without else ():
            regions[owner].append(region)


def _in_one_slice(
    plan: Plan, regions: Mapping[str, Sequence[Region]], found: Sequence[Role], axis: str, k: int, label: int
) -> bool:
    """Has every role this layer once, in the same slice, and knows nothing of the slice there?"""
    holders = [[c for c in role.classes if label in regions[c][k].instances] for role in found]
    if any(len(of) != 1 for of in holders) or len({plan.by_class[c].box[axis] for (c,) in holders}) != 1:
        return False
    return not any(
        _knows(plan, op, axis) for (c,) in holders for op in regions[c][k].instances[label].templates
    )


def _knows(plan: Plan, op: Op, axis: str) -> bool:
    """Does an op depend on the coordinate along an axis, or meet ranks of others?"""
    if op.name in MESSAGES:
        return True
    if op.name in COLLECTIVES:
        group = plan.groups[op.text("group")]
        if not group.steps and not in_slices(plan.mesh, group, (axis,)):
            return True
    values = (v for value in op.attrs.values() for v in (value if isinstance(value, tuple) else (value,)))
    return any(isinstance(v, Affine) and axis in dict(v.terms) for v in values)


def _patterns(flow: Flow) -> list[Instance]:
    """One repetition of each kind that a program has, in order."""
    found: list[Instance] = []
    taken: set[str] = set()
    for region in layers(flow, True):
        usual = min(region.instances.values(), key=lambda i: len(i.handed))
        if taken.isdisjoint(usual.members):
            found.append(usual)
            taken.update(*(i.members for i in _repeated(flow, [usual])[0].instances.values()))
    return found


def _repeated(flow: Flow, patterns: Sequence[Instance]) -> list[Region]:
    """Every place of a program that does what a pattern does, by the layer whose tensors it uses."""
    labels = Labels(flow)
    heads = [head(op) for op in flow.core]
    taken: set[str] = set()
    found = []
    for pattern in patterns:
        of = {op.out: op for op in pattern.templates}
        wanted = [head(of[m]) for m in pattern.members]
        within = _within(pattern)
        instances: dict[int, list[Instance]] = {}
        stop = 0
        for start in range(len(heads)):
            if start < stop or heads[start] != wanted[0]:
                continue
            for members in _members(flow, heads, wanted, within, start):
                instance = pattern.beside(flow, start, members) if taken.isdisjoint(members) else None
                seen = labels.of(members) if instance is not None else Counter[int]()
                if instance is not None and seen:
                    instances.setdefault(seen.most_common(1)[0][0], []).append(instance)
                    stop = start + len(members)
                    break
        region = Region(flow, {n: of[0] for n, of in instances.items() if len(of) == 1})
        for label, instance in region.instances.items():
            labels.give(instance, label)
            taken.update(instance.members)
        found.append(region)
    return found


def _within(pattern: Instance) -> list[set[int]]:
    """The members of a pattern that each of its members reads, by their places among them."""
    place = {pattern.local[m]: i for i, m in enumerate(pattern.members)}
    made_of: list[set[int]] = []
    for _, operands in pattern.ops:
        assert isinstance(operands, tuple)
        of = set[int]()
        for kind, n in operands:
            of |= set() if kind != "local" else {place[n]} if n in place else made_of[n]
        made_of.append(of)
    return [made_of[pattern.local[m]] for m in pattern.members]


def _members(
    flow: Flow, heads: Sequence[object], wanted: Sequence[object], within: Sequence[set[int]], start: int
) -> Iterator[list[str]]:
    """Core ops from ``start`` on that do what is wanted, in order. Others may stand amid them, such as what
    the first of all layers computes for all, or what is left for later elsewhere: nothing that they need.

    An op that looks like the wanted one may be one of the others: both ways are tried.
    """
    end = min(len(heads), start + len(wanted) + max(_AMID, len(wanted) // 2))
    # Where to go on, what was found before, and what stands amid that and reads it.
    ways: list[tuple[int, list[str], frozenset[str]]] = [(start, [], frozenset())]
    for _ in range(_WAYS):
        if not ways:
            return
        at, found, aside = ways.pop()
        while at < end and len(found) < len(wanted):
            leaves = set(flow.leaves_of(flow.core[at])) if heads[at] == wanted[0] or found else set()
            reads = {i for i, v in enumerate(found) if v in leaves}
            alike = heads[at] == wanted[len(found)] and reads == within[len(found)]
            others = aside | {flow.core[at].out} if reads or not aside.isdisjoint(leaves) else aside
            if alike and aside.isdisjoint(leaves):
                if found and wanted[len(found)] in heads[at + 1 : end]:
                    ways.append((at + 1, list(found), others))
                found.append(flow.core[at].out)
            elif not found:
                return
            else:
                aside = others
            at += 1
        if len(found) == len(wanted):
            yield found


def phases(plan: Plan, cls: str, program: Program) -> dict[str, int]:
    """When a rank computes each value. ``program`` is that of a class up to its stacks (:mod:`.stacks`)."""
    if plan.schedule is None:
        return {}
    known, once = _once(plan, cls, plan.schedule)
    for op in program.ops:
        joins = op.name in COLLECTIVES and plan.groups[op.text("group")].steps > 0
        if joins or (op.out not in known and not once.isdisjoint(op.ins)):
            once.add(op.out)
    found: dict[str, int] = {}
    read: set[str] = set()
    for op in reversed(program.ops):
        found[op.out] = EACH if op.out not in once else BEFORE if op.out in read else AFTER
        if found[op.out] != AFTER:
            read.update(op.ins)
    return found


def _once(plan: Plan, cls: str, schedule: Schedule) -> tuple[set[str], set[str]]:
    """The results of a class, and those of them that the schedule has a rank compute once."""
    ops = plan.by_class[cls].program.ops
    marked = schedule.once.get(cls, ())
    spans = (span for s in marked if isinstance(s, str) for span in schedule.segments[cls][s])
    found = {op.out for low, high in spans for op in ops[low:high]}
    found |= {op.out for op in ops if op.name in COLLECTIVES and op.integer("seq") in marked}
    return {op.out for op in ops}, found
