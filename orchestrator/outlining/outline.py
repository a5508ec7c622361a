"""Repeated code of a flat plan becomes functions: a layer's forward, its backward, its optimizer update.

A run of core ops that repeats becomes a function of its leaves; the repetitions of all programs are paired by
the number in the names of the tensors that they use. Work that stands elsewhere but belongs to one repetition
alone, such as the norm of a gradient, joins it. What comes out computes the same, value for value
(:func:`certificates.plan.functions.inline` and :func:`expressions` say so).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from certificates.plan.checking import check_plan
from certificates.plan.functions import inline
from certificates.plan.ops import CALL, COLLECTIVES, MESSAGES
from certificates.plan.plan import Function, Plan
from certificates.plan.program import Attr, Op, Program
from certificates.plan.types import TensorType

from .flow import Flow, executed, head
from .regions import Instance, Region
from .repeats import LEAST_REPEATS, Run, runs
from .sections import sections
from .stacks import flattened, gathered, grouped, spread

_NUMBER = re.compile(r"(?:^|\.)([0-9]+)(?:\.|$)")


# --- repetitions of numbered layers ------------------------------------------------------------------------


class _Labels:
    """The number of a layer at every core op that shows one: in the names of inputs and outputs it touches,
    or by results of repetitions that are labelled already.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.inherited: dict[str, int] = {}
        self._outputs: dict[str, set[int]] = {}
        for name, value in flow.program.outputs.items():
            number = _number(name)
            for leaf in flow.leaves(value) if number is not None else ():
                self._outputs.setdefault(leaf, set()).add(number if number is not None else -1)

    def of(self, first: int, last: int) -> Counter[int]:
        """Labels seen by the core ops in ``[first, last)``, and how often."""
        ops = self.flow.core[first:last]
        own = {op.out for op in ops}
        leaves = {leaf for op in ops for leaf in self.flow.leaves_of(op)} - own
        direct = [_number(v) for v in leaves if v in self.flow.program.inputs]
        direct += [n for op in ops for n in self._outputs.get(op.out, ())]
        found = Counter(n for n in direct if n is not None)
        return found or Counter(self.inherited[v] for v in leaves if v in self.inherited)

    def give(self, instance: Instance, label: int) -> None:
        self.inherited |= dict.fromkeys(instance.members, label)


def _regions(flow: Flow, handed: bool) -> list[Region]:
    """The repetitions of a program that belong to numbered layers, in order.

    ``handed``: an operand of a call may be a cheap value. In the specification it may not, as facts about the
    plan's operands are in terms of the leaves there.
    """
    position = {op.out: i for i, op in enumerate(flow.core)}
    labels = _Labels(flow)
    found = []
    everywhere = runs([flow.token(op) for op in flow.core])
    for k, run in enumerate(everywhere):
        first = _best_cut(flow, position, labels, run)
        starts = range(first, run.stop - run.period + 1, run.period)
        numbers = [labels.of(s, s + run.period) for s in starts]
        seen = [n.most_common(1)[0][0] if n else -1 for n in numbers]
        usable = [s for s, n in zip(starts, seen, strict=True) if n >= 0 and seen.count(n) == 1]
        if len(usable) < LEAST_REPEATS:
            continue
        names = {s: [op.out for op in flow.core[s : s + run.period]] for s in usable}
        instances = {seen[starts.index(s)]: Instance.of(flow, s, names[s]) for s in usable}
        usual = Counter(tuple(i.ops) for i in instances.values()).most_common(1)[0][0]
        region = Region(flow, {n: i for n, i in instances.items() if tuple(i.ops) == usual})
        low = everywhere[k - 1].stop if k else 0
        high = everywhere[k + 1].start if k + 1 < len(everywhere) else len(flow.core)
        for start in (first - run.period, starts[-1] + run.period) if handed else ():
            if low <= start and start + run.period <= high:
                _join(region, start, labels.of(start, start + run.period))
        found.append(region)
        for label, instance in region.instances.items():
            labels.give(instance, label)
    return found


def _join(region: Region, start: int, seen: Counter[int]) -> None:
    """Add what stands beside a repetition, if it is one more instance, given what is made in another way."""
    usual = next(iter(region.instances.values()))
    label = seen.most_common(1)[0][0] if seen else -1
    if label >= 0 and label not in region.instances:
        members = [op.out for op in region.flow.core[start : start + len(usual.members)]]
        instance = usual.beside(region.flow, start, members)
        if instance is not None:
            region.instances[label] = instance


def _best_cut(flow: Flow, position: Mapping[str, int], labels: _Labels, run: Run) -> int:
    """Where in its period a repetition begins: one layer in each, and as few values handed on as can be."""

    def cost(first: int) -> tuple[int, int, int]:
        cut = first + run.period * (run.count // 2)
        if cut + run.period > run.stop:
            cut -= run.period
        passed = {
            leaf
            for op in flow.core[cut : cut + run.period]
            for leaf in flow.leaves_of(op)
            if cut - run.period <= position.get(leaf, -1) < cut
        }
        return len(labels.of(cut, cut + run.period)), len(passed), first

    return min(range(run.start, run.start + run.period), key=cost)


def _number(name: str) -> int | None:
    found = _NUMBER.search(name)
    return int(found[1]) if found else None


# --- what belongs to one repetition alone ------------------------------------------------------------------


class _Growth:
    """Gives core ops of a program that stand outside all repetitions to the ones they belong to."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = regions
        self.flow = regions[0].flow
        self.position = {op.out: i for i, op in enumerate(self.flow.core)}
        #: Region, label and place of every core op that has an owner.
        self.owner: dict[str, tuple[int, int, int]] = {}
        for k, region in enumerate(regions):
            for label, instance in region.instances.items():
                self._own(k, label, instance)

    def _own(self, region: int, label: int, instance: Instance) -> None:
        for place, member in enumerate(instance.members):
            self.owner[member] = (region, label, place)

    def grow(self) -> None:
        """Until nothing more belongs to one repetition."""
        while any([self._extend(k) for k in range(len(self.regions))]):
            pass

    def _extend(self, number: int) -> bool:
        """Ops that every repetition of a region has, before it or behind it."""
        region = self.regions[number]
        found: dict[tuple[bool, Hashable], dict[int, list[str]]] = {}
        for op in self.flow.core:
            if op.out in self.owner or op.name in COLLECTIVES or op.name == CALL:
                continue
            for before, place in ((False, self._behind(op)), (True, self._before(op))):
                if place is not None and place[0] == number:
                    key = before, (self.flow.token(op), place[2])
                    found.setdefault(key, {}).setdefault(place[1], []).append(op.out)
                    break
        taken = [
            (before, of_label)
            for (before, _), of_label in found.items()
            if len({len(of_label.get(n, ())) for n in region.instances}) == 1
        ]
        for label, instance in region.instances.items() if taken else ():
            ahead = [v for before, of_label in taken if before for v in of_label[label]]
            behind = [v for before, of_label in taken if not before for v in of_label[label]]
            ahead.sort(key=self.position.__getitem__)
            grown = Instance.of(
                self.flow, instance.first, (*ahead, *instance.members, *behind), instance.handed
            )
            region.instances[label] = grown
            self._own(number, label, grown)
        return bool(taken)

    def _behind(self, op: Op) -> tuple[int, int, Hashable] | None:
        """Region and label that all leaves of an op come from, and their places there, operand by operand."""
        owners = [self.owner.get(leaf) for leaf in self.flow.leaves_of(op)]
        found = {o[:2] for o in owners if o is not None}
        if None in owners or len(found) != 1:
            return None
        places = tuple(tuple(self.owner[leaf][2] for leaf in self.flow.leaves(v)) for v in op.ins)
        return *found.pop(), places

    def _before(self, op: Op) -> tuple[int, int, Hashable] | None:
        """Region and label of all users of an op that stands before them, and their places."""
        owners = [self.owner.get(u) for u in self.flow.users.get(op.out, ())]
        found = {o[:2] for o in owners if o is not None}
        if None in owners or len(found) != 1:
            return None
        region, label = found.pop()
        if self.position[op.out] >= self.regions[region].instances[label].first:
            return None
        if any(
            self.flow.producer[v].name == "all_gather" for v in self.flow.leaves_of(op) if v in self.position
        ):
            return None  # the gather would stand before another op then
        return region, label, tuple(sorted(o[2] for o in owners if o is not None))


# --- the outlined plan -------------------------------------------------------------------------------------


def in_order(program: Program) -> Program:
    """The same program in an order, and with stacks in a form, that do not depend on where its code stood:
    what each collective needs, then what each output needs.
    """
    program = spread(flattened(program))
    producer = {op.out: op for op in program.ops}
    read = {v for op in program.ops for v in op.ins} | set(program.outputs.values())
    meetings = [
        op.out
        for op in program.ops
        if op.name in MESSAGES or (op.name in COLLECTIVES and (op.name != "all_gather" or op.out not in read))
    ]
    order = executed(((op.out, op.ins) for op in program.ops), (*meetings, *program.outputs.values()))
    ops = tuple(producer[value] for value in order if value in producer)
    return Program(program.inputs, ops, program.outputs)


def outline(plan: Plan, accept: Callable[[Plan], bool] | None = None) -> Plan:
    """The plan with its repeated code in functions; itself where the programs do not repeat alike, or where a
    schedule speaks of their ops by number.

    What stands between the repetitions is in functions too, called once each, if the plan is accepted so.
    """
    if plan.functions or plan.schedule is not None:
        return plan
    owners = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    wide = {owner: spread(program) for owner, program in owners.items()}
    regions = _common_regions(plan, wide)
    near = {owner: _grouped(r) for owner, r in regions.items() if r}
    stacked = any(near[owner] != wide[owner] for owner in near)
    programs = near if stacked else owners
    if programs != wide:
        regions = _common_regions(plan, programs)
    if not any(regions.values()):
        return plan
    if accept is not None:
        between = [section for section in sections(regions) if _meet(plan, section)]
        both = {owner: [*of, *(section[owner] for section in between)] for owner, of in regions.items()}
        outlined = _outlined(plan, programs, both)
        if accept(outlined):
            return outlined
    return _outlined(plan, programs, regions)


def _outlined(plan: Plan, programs: Mapping[str, Program], regions: Mapping[str, Sequence[Region]]) -> Plan:
    """The plan whose programs are these, with calls in place of the regions."""
    numbers: dict[str, list[tuple[int, ...]]] = {owner: [] for owner in regions}
    for k, region in enumerate(regions["s"]):
        label = next(iter(region.instances))
        seqs = {c.name: tuple(regions[c.name][k].instances[label].seqs) for c in plan.classes}
        numbers["s"].append(())
        for cls, pattern in zip(plan.classes, _pattern(plan, seqs), strict=True):
            numbers[cls.name].append(pattern)
    made = {owner: _rewrite(programs[owner], of, numbers[owner]) for owner, of in regions.items()}
    functions = {
        f"f{k}": Function(made["s"][1][k], {c.name: made[c.name][1][k] for c in plan.classes})
        for k in range(len(regions["s"]))
    }
    outlined = replace(
        plan,
        specification=made["s"][0],
        classes=tuple(replace(c, program=made[c.name][0]) for c in plan.classes),
        functions=functions,
    )
    check_plan(outlined)
    known: dict[object, int] = {}
    if expressions(_normal(inline(outlined)), known) != expressions(_normal(plan), known):
        raise AssertionError("outlining changed what the plan computes")
    return outlined


def _normal(plan: Plan) -> Plan:
    """The plan with its stacks flat and elementwise work on them whole: what :func:`spread` undid."""
    classes = tuple(replace(c, program=gathered(flattened(c.program))) for c in plan.classes)
    return replace(plan, specification=gathered(flattened(plan.specification)), classes=classes)


def _common_regions(plan: Plan, programs: Mapping[str, Program]) -> dict[str, list[Region]]:
    """The repetitions that all programs have, grown; none where the programs do not repeat alike."""
    regions = {owner: _regions(Flow(program), owner != "s") for owner, program in programs.items()}
    chosen: dict[str, list[Region]] = {owner: [] for owner in programs}
    if len({len(r) for r in regions.values()}) != 1:
        return chosen
    for k in range(len(regions["s"])):
        labels = set.intersection(*(set(r[k].instances) for r in regions.values()))
        common = {
            owner: Region(r[k].flow, {n: i for n, i in r[k].instances.items() if n in labels})
            for owner, r in regions.items()
        }
        if len(labels) >= LEAST_REPEATS and _meet(plan, common):
            for owner, region in common.items():
                chosen[owner].append(region)
    for found in chosen.values():
        if found:
            _Growth(found).grow()
    return chosen


def _grouped(regions: Sequence[Region]) -> Program:
    """The program with neighbours in a stack that come from one repetition concatenated first."""
    growth = _Growth(regions)
    flow = growth.flow

    def kin(value: str) -> Hashable:
        owners = {growth.owner.get(leaf, (-1, 0, 0))[:2] for leaf in flow.leaves(value)}
        return owners.pop() if len(owners) == 1 and (-1, 0) not in owners else None

    return grouped(flow.program, kin)


def _meet(plan: Plan, region: Mapping[str, Region]) -> bool:
    """Whether the collectives of every instance meet those of the same instance in the other classes."""
    takes_part: dict[int, set[str]] = {}
    for cls in plan.classes:
        for op in cls.program.ops:
            if op.name in COLLECTIVES:
                takes_part.setdefault(op.integer("seq"), set()).add(cls.name)
    shape: dict[int, dict[str, tuple[int, ...]]] = {}
    for cls in plan.classes:
        for label, instance in region[cls.name].instances.items():
            shape.setdefault(label, {})[cls.name] = tuple(instance.seqs)
    for seqs in shape.values():
        inside = Counter(s for of_class in seqs.values() for s in of_class)
        if any(inside[s] != len(takes_part[s]) for s in inside):
            return False
    return len({_pattern(plan, seqs) for seqs in shape.values()}) == 1


def _pattern(plan: Plan, seqs: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The rendezvous of one instance, numbered by first occurrence over the classes."""
    number: dict[int, int] = {}
    return tuple(tuple(number.setdefault(s, len(number)) for s in seqs[c.name]) for c in plan.classes)


def _rewrite(
    program: Program, regions: Sequence[Region], numbers: Sequence[tuple[int, ...]]
) -> tuple[Program, list[Program]]:
    """The program with calls, and the bodies; ``numbers`` are those of each body's rendezvous, in order."""
    flow = regions[0].flow
    bodies: list[Program] = []
    starts: dict[int, list[Op]] = {}
    inside: set[str] = set()
    for k, region in enumerate(regions):
        slots, places = region.slots(), region.shown()
        inside.update(*(i.members for i in region.instances.values()))
        bodies.append(_body(flow, next(iter(region.instances.values())), slots, places, numbers[k]))
        for label, instance in region.instances.items():
            by_place = {place: value for value, place in instance.local.items()}
            operands = tuple(instance.sites[slots.index(s)] for s in range(max(slots, default=-1) + 1))
            starts[instance.first] = [
                _result(program, by_place[place], operands, f"f{k}", label, output)
                for output, place in enumerate(places)
            ]
    return Program(program.inputs, tuple(_ordered(flow, starts, inside)), program.outputs), bodies


def _ordered(flow: Flow, starts: Mapping[int, Sequence[Op]], inside: Collection[str]) -> Iterator[Op]:
    """Calls and the core ops outside them, each where it stood or before what needs it.

    What a value is made of stands before the cheap ops that make it.
    """
    made = {op.out: call for call in starts.values() for op in call}

    def with_leaves(values: Iterable[str]) -> Iterator[str]:
        return (v for value in values for v in (*flow.leaves(value), value))

    def reads(op: Op) -> Iterable[str]:
        if op.out in made:
            first = made[op.out][0]
            return with_leaves(first.ins) if op.out == first.out else (first.out,)
        return op.ins if op.out in flow.cheap else with_leaves(op.ins)

    wanted: list[str] = []
    for i, op in enumerate(flow.core):
        wanted += (call.out for call in starts.get(i, ()))
        wanted += () if op.out in inside else (op.out,)
    wanted += with_leaves(flow.program.outputs.values())
    for value in executed(((op.out, reads(op)) for op in flow.program.ops), wanted):
        call = made.get(value, ())
        if call:
            yield from call if value == call[0].out else ()
        elif value in flow.producer:
            yield flow.producer[value]


def _result(
    program: Program, value: str, operands: tuple[str, ...], function: str, label: int, output: int
) -> Op:
    attrs: dict[str, Attr] = {"function": function, "instance": label, "output": output}
    return Op(value, CALL, operands, program.type_of(value), attrs)


def _body(
    flow: Flow, instance: Instance, slots: Sequence[int], places: Sequence[int], numbers: Iterable[int]
) -> Program:
    inputs: dict[str, TensorType] = {}
    for site, slot in enumerate(slots):
        inputs.setdefault(f"a{slot}", flow.program.type_of(instance.sites[site]))
    seqs = iter(numbers)
    ops = []
    for place, (template, (_, operands)) in enumerate(zip(instance.templates, instance.ops, strict=True)):
        attrs = dict(template.attrs)
        if template.name in COLLECTIVES:
            attrs["seq"] = next(seqs)
        assert isinstance(operands, tuple)
        ins = tuple(f"%{n}" if kind == "local" else f"a{slots[n]}" for kind, n in operands)
        ops.append(replace(template, out=f"%{place}", ins=ins, attrs=attrs))
    return Program(inputs, tuple(ops), {f"r{i}": f"%{place}" for i, place in enumerate(places)})


def expressions(plan: Plan, known: dict[object, int]) -> dict[str, dict[str, int]]:
    """A number per output of every program; two plans agree in them iff they compute the same expressions.

    ``known`` holds all expressions met so far. Rendezvous are compared by what their members hand over,
    messages, which nobody has to read, by program, number and what is sent.
    """
    out: dict[str, dict[str, int]] = {}
    meets: dict[int, dict[str, int]] = {}
    sent: dict[str, int] = {}
    owners = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    for owner, program in owners.items():
        value: dict[str, int] = {}
        for name in program.inputs:
            value[name] = known.setdefault(("input", name), len(known))
        for op in program.ops:
            key: tuple[object, ...] = (*head(op), tuple(value[v] for v in op.ins))
            value[op.out] = known.setdefault(key, len(known))
            if op.name in COLLECTIVES:
                meets.setdefault(op.integer("seq"), {})[owner] = value[op.out]
            if op.name == "send":
                sent[f"{owner} {op.integer('seq')}"] = value[op.out]
        out[owner] = {name: value[v] for name, v in program.outputs.items()}
    # A collective of one class must meet the same collectives of the others.
    partners = sorted(tuple(sorted(m.items())) for m in meets.values())
    # No class has a space in its name.
    out["all messages"] = sent
    out["all rendezvous"] = {
        str(i): known.setdefault(p, len(known)) for i, p in enumerate(sorted(set(partners)))
    }
    return out
