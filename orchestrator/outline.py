"""Repeated code of a flat plan becomes functions: a layer's forward, its backward, its optimizer update.

Each program is cut into *core* ops, in order, and *cheap* ones (data movement, literals, casts), which are
computed anew wherever they are needed. A run of core ops that repeats becomes a function of its leaves; the
repetitions of all programs are paired by the number in the names of the tensors that they use. What comes out
computes the same, value for value (:func:`certificates.functions.inline` and :func:`expressions` say so).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from certificates.affine import Affine
from certificates.functions import inline
from certificates.ir import CALL, COLLECTIVES, Attr, Op, Program, TensorType
from certificates.plan import Function, Plan, check_plan

#: Ops that are computed again where they are used, rather than handed over.
CHEAP = frozenset(
    ("constant", "iota", "broadcast_in_dim", "reshape", "transpose", "slice", "convert", "negate", "pad")
)
_PARTS = 8  # a concatenation of at most so many parts is cheap
#: Shorter repetitions stay where they are: a cut between, say, the squares of a norm and its root costs more
#: than it saves.
LEAST_REPEATS, LEAST_PERIOD = 3, 32
_NUMBER = re.compile(r"(?:^|\.)([0-9]+)(?:\.|$)")


class Flow:
    """A program seen as core ops over leaves: inputs and results of core ops."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.producer = {op.out: op for op in program.ops}
        self._closed: dict[str, bool] = {}
        self._signature: dict[str, int] = {}
        self._numbers: dict[object, int] = {}
        self._leaves: dict[str, tuple[str, ...]] = {}
        for op in program.ops:
            self._closed[op.out] = op.name not in COLLECTIVES and all(
                self._closed.get(v, False) for v in op.ins
            )
        self.cheap = {op.out for op in program.ops if self._is_cheap(op)}
        self.core = self._in_order([op for op in program.ops if op.out not in self.cheap])

    def _is_cheap(self, op: Op) -> bool:
        if op.name == CALL:
            return False
        if self._closed[op.out] or op.name in CHEAP:
            return True
        if op.name == "concatenate":
            return len(op.ins) <= _PARTS
        literal = [self.producer[v].name == "constant" for v in op.ins if v in self.producer]
        return op.name in ("multiply", "divide") and any(literal)

    def _in_order(self, core: list[Op]) -> list[Op]:
        """As executed, but an all-gather stands before the first op that needs it: frameworks prefetch."""
        first_use: dict[str, float] = {}
        for i, op in reversed(list(enumerate(core))):
            here = first_use.get(op.out, i + 1.0) - 0.5 if op.name == "all_gather" else float(i)
            if op.name == "all_gather":
                first_use[op.out] = here
            for leaf in {leaf for v in op.ins for leaf in self.leaves(v)}:
                first_use[leaf] = min(here, first_use.get(leaf, here))
        gathers = {op.out: first_use[op.out] for op in core if op.name == "all_gather"}
        place = {op.out: (gathers.get(op.out, float(i)), i) for i, op in enumerate(core)}
        return sorted(core, key=lambda op: place[op.out])

    def leaves(self, value: str) -> tuple[str, ...]:
        """Inputs and core results that a value is made of, each once."""
        if value not in self._leaves:
            if value in self.cheap:
                inner = (leaf for v in self.producer[value].ins for leaf in self.leaves(v))
                self._leaves[value] = tuple(dict.fromkeys(inner))
            else:
                self._leaves[value] = (value,)
        return self._leaves[value]

    def token(self, op: Op) -> int:
        """Equal for core ops that do the same with operands that are made alike from their leaves."""
        return self._number((*_head(op), tuple(self.signature(v) for v in op.ins)))

    def signature(self, value: str) -> int:
        if value not in self._signature:
            if value in self.cheap:
                self._signature[value] = self.token(self.producer[value])
            else:
                self._signature[value] = self._number(str(self.program.type_of(value)))
        return self._signature[value]

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _head(op: Op) -> tuple[object, ...]:
    """What an op does, its rendezvous left open."""
    attrs = tuple(sorted((k, _plain(v)) for k, v in op.attrs.items() if k != "seq"))
    return op.name, str(op.type), attrs


def _plain(value: object) -> str:
    if isinstance(value, Affine):
        return f"affine {value}"
    return f"[{','.join(map(_plain, value))}]" if isinstance(value, tuple) else repr(value)


# --- repetitions -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Tokens from ``start`` to ``stop`` that repeat after ``period`` positions."""

    start: int
    period: int
    stop: int

    @property
    def count(self) -> int:
        return (self.stop - self.start) // self.period


def runs(tokens: Sequence[int]) -> list[Run]:
    """Disjoint repetitions, those that save most first found, in order."""
    out: list[Run] = []
    work = [(0, len(tokens))]
    while work:
        low, high = work.pop()
        best = _longest(tokens, low, high)
        if best is not None:
            if best.period >= LEAST_PERIOD:
                out.append(best)
            work += [(low, best.start), (best.stop, high)]
    return sorted(out, key=lambda r: r.start)


def _longest(tokens: Sequence[int], low: int, high: int) -> Run | None:
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i in range(low, high):
        if tokens[i] in last:
            distances[i - last[tokens[i]]] += 1
        last[tokens[i]] = i
    best, saved = None, 0
    candidates = {sum(part) for part in _windows(distances)} | set(distances)
    for period in sorted(candidates):
        i = low
        while i + period < high:
            j = i
            while j + period < high and tokens[j] == tokens[j + period]:
                j += 1
            count = (j - i) // period + 1
            if count >= LEAST_REPEATS and (count - 1) * period > saved:
                best, saved = Run(i, period, j + period), (count - 1) * period
            i = j + 1
    return best


def _windows(distances: Counter[int]) -> Iterator[tuple[int, ...]]:
    """A token that stands twice in a period shows two distances that add up to it."""
    common = [d for d, _ in distances.most_common(12)]
    for i, a in enumerate(common):
        for b in common[i:]:
            yield a, b


# --- bodies ----------------------------------------------------------------------------------------------


@dataclass
class Instance:
    """One repetition: its ops over local names, and the leaf at each site where it reads one."""

    first: int
    last: int
    ops: list[tuple[object, ...]] = field(default_factory=list)
    templates: list[Op] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    local: dict[str, int] = field(default_factory=dict)
    seqs: list[int] = field(default_factory=list)


def _instance(flow: Flow, first: int, last: int) -> Instance:
    found = Instance(first, last)
    own = {op.out for op in flow.core[first:last]}

    def place(value: str) -> tuple[str, int]:
        if value in found.local:
            return "local", found.local[value]
        if value in flow.cheap:
            return emit(flow.producer[value])
        if value in own:
            raise AssertionError(f"{value} is used before it is computed")
        found.sites.append(value)
        return "site", len(found.sites) - 1

    def emit(op: Op) -> tuple[str, int]:
        operands = tuple(place(v) for v in op.ins)
        if op.name in COLLECTIVES:
            found.seqs.append(op.integer("seq"))
        found.local[op.out] = len(found.ops)
        found.ops.append((_head(op), operands))
        found.templates.append(op)
        return "local", found.local[op.out]

    for op in flow.core[first:last]:
        emit(op)
    return found


@dataclass
class Region:
    """The repetitions of one program that become calls of one function, by label."""

    flow: Flow
    instances: dict[int, Instance]

    def slots(self) -> list[int]:
        """The function's input for each site: sites that agree in every instance share one."""
        numbers: dict[tuple[str, ...], int] = {}
        width = len(next(iter(self.instances.values())).sites)
        return [
            numbers.setdefault(tuple(i.sites[s] for i in self.instances.values()), len(numbers))
            for s in range(width)
        ]


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
        leaves = {leaf for op in ops for v in op.ins for leaf in self.flow.leaves(v)} - own
        direct = [_number(v) for v in leaves if v in self.flow.program.inputs]
        direct += [n for op in ops for n in self._outputs.get(op.out, ())]
        found = Counter(n for n in direct if n is not None)
        return found or Counter(self.inherited[v] for v in leaves if v in self.inherited)

    def give(self, instance: Instance, label: int) -> None:
        for op in self.flow.core[instance.first : instance.last]:
            self.inherited[op.out] = label


def _regions(flow: Flow) -> list[Region]:
    """The repetitions of a program that belong to numbered layers, in order."""
    position = {op.out: i for i, op in enumerate(flow.core)}
    labels = _Labels(flow)
    found = []
    for run in runs([flow.token(op) for op in flow.core]):
        first = _best_cut(flow, position, labels, run)
        starts = range(first, run.stop - run.period + 1, run.period)
        numbers = [labels.of(s, s + run.period) for s in starts]
        seen = [n.most_common(1)[0][0] if n else -1 for n in numbers]
        usable = [s for s, n in zip(starts, seen, strict=True) if n >= 0 and seen.count(n) == 1]
        if len(usable) < LEAST_REPEATS:
            continue
        instances = {seen[starts.index(s)]: _instance(flow, s, s + run.period) for s in usable}
        usual = Counter(tuple(i.ops) for i in instances.values()).most_common(1)[0][0]
        region = Region(flow, {n: i for n, i in instances.items() if tuple(i.ops) == usual})
        found.append(region)
        for label, instance in region.instances.items():
            labels.give(instance, label)
    return found


def _best_cut(flow: Flow, position: Mapping[str, int], labels: _Labels, run: Run) -> int:
    """Where in its period a repetition begins: one layer in each, and as few values handed on as can be."""

    def cost(first: int) -> tuple[int, int, int]:
        cut = first + run.period * (run.count // 2)
        if cut + run.period > run.stop:
            cut -= run.period
        passed = {
            leaf
            for op in flow.core[cut : cut + run.period]
            for v in op.ins
            for leaf in flow.leaves(v)
            if cut - run.period <= position.get(leaf, -1) < cut
        }
        return len(labels.of(cut, cut + run.period)), len(passed), first

    return min(range(run.start, run.start + run.period), key=cost)


def _number(name: str) -> int | None:
    found = _NUMBER.search(name)
    return int(found[1]) if found else None


# --- the outlined plan -----------------------------------------------------------------------------------


def in_order(program: Program) -> Program:
    """The same program in the order of an outlined one: cheap ops where they are first needed."""
    flow = Flow(program)
    ops: dict[str, Op] = {}

    def need(value: str) -> None:
        if value in flow.producer and value not in ops:
            for v in flow.producer[value].ins:
                need(v)
            ops[value] = flow.producer[value]

    for value in (*(op.out for op in flow.core), *program.outputs.values()):
        need(value)
    return Program(program.inputs, tuple(ops.values()), program.outputs)


def outline(plan: Plan) -> Plan:
    """The plan with its repeated code in functions; itself where the programs do not repeat alike."""
    if plan.functions:
        return plan
    owners = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    regions = {owner: _regions(Flow(program)) for owner, program in owners.items()}
    if len({len(r) for r in regions.values()}) != 1:
        return plan
    chosen: dict[str, dict[str, Region]] = {owner: {} for owner in owners}
    for k in range(len(regions["s"])):
        labels = set.intersection(*(set(r[k].instances) for r in regions.values()))
        common = {
            owner: Region(r[k].flow, {n: i for n, i in r[k].instances.items() if n in labels})
            for owner, r in regions.items()
        }
        if len(labels) >= LEAST_REPEATS and _meet(plan, common):
            for owner, region in common.items():
                chosen[owner][f"f{k}"] = region
    if not chosen["s"]:
        return plan
    made = {owner: _rewrite(program, chosen[owner]) for owner, program in owners.items()}
    functions = {
        name: Function(made["s"][1][name], {c.name: made[c.name][1][name] for c in plan.classes})
        for name in chosen["s"]
    }
    outlined = replace(
        plan,
        specification=made["s"][0],
        classes=tuple(replace(c, program=made[c.name][0]) for c in plan.classes),
        functions=functions,
    )
    check_plan(outlined)
    known: dict[object, int] = {}
    if expressions(inline(outlined), known) != expressions(plan, known):
        raise AssertionError("outlining changed what the plan computes")
    return outlined


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


def _rewrite(program: Program, regions: Mapping[str, Region]) -> tuple[Program, dict[str, Program]]:
    """The program with calls, and the bodies."""
    if not regions:
        return program, {}
    flow = next(iter(regions.values())).flow
    position = {op.out: i for i, op in enumerate(flow.core)}
    users: dict[str, list[int]] = {}
    for i, op in enumerate(flow.core):
        for leaf in {leaf for v in op.ins for leaf in flow.leaves(v)}:
            users.setdefault(leaf, []).append(i)
    for value in program.outputs.values():
        for leaf in flow.leaves(value):
            users.setdefault(leaf, []).append(len(flow.core))
    bodies: dict[str, Program] = {}
    starts: dict[int, tuple[str, int, Instance, list[str], list[str]]] = {}
    for name, region in regions.items():
        slots = region.slots()
        shown: dict[int, None] = {}
        for instance in region.instances.values():
            for value, place in instance.local.items():
                outside = (u for u in users.get(value, ()) if not instance.first <= u < instance.last)
                if value in position and next(outside, None) is not None:
                    shown[place] = None
        places = sorted(shown)
        bodies[name] = _body(flow, next(iter(region.instances.values())), slots, places)
        for label, instance in region.instances.items():
            by_place = {place: value for value, place in instance.local.items()}
            operands = [instance.sites[slots.index(k)] for k in range(max(slots, default=-1) + 1)]
            results = [by_place[place] for place in places]
            starts[instance.first] = (name, label, instance, operands, results)
    ops: list[Op] = []
    done: set[str] = set(program.inputs)

    def need(value: str) -> None:
        if value not in done:
            for v in flow.producer[value].ins:
                need(v)
            ops.append(flow.producer[value])
            done.add(value)

    i = 0
    while i < len(flow.core):
        if i in starts:
            name, label, instance, operands, results = starts[i]
            for output, value in enumerate(results):
                attrs: dict[str, Attr] = {"function": name, "instance": label, "output": output}
                ops.append(Op(value, CALL, tuple(operands), program.type_of(value), attrs))
            done.update(results)
            i = instance.last
        else:
            need(flow.core[i].out)
            i += 1
    for value in program.outputs.values():
        need(value)
    return Program(program.inputs, tuple(ops), program.outputs), bodies


def _body(flow: Flow, instance: Instance, slots: Sequence[int], places: Sequence[int]) -> Program:
    inputs: dict[str, TensorType] = {}
    for site, slot in enumerate(slots):
        inputs.setdefault(f"a{slot}", flow.program.type_of(instance.sites[site]))
    seqs: dict[int, int] = {}
    ops = []
    for place, (template, (_, operands)) in enumerate(zip(instance.templates, instance.ops, strict=True)):
        attrs = dict(template.attrs)
        if template.name in COLLECTIVES:
            attrs["seq"] = seqs.setdefault(template.integer("seq"), len(seqs))
        assert isinstance(operands, tuple)
        ins = tuple(f"%{n}" if kind == "local" else f"a{slots[n]}" for kind, n in operands)
        ops.append(replace(template, out=f"%{place}", ins=ins, attrs=attrs))
    return Program(inputs, tuple(ops), {f"r{i}": f"%{place}" for i, place in enumerate(places)})


def expressions(plan: Plan, known: dict[object, int]) -> dict[str, dict[str, int]]:
    """A number per output of every program; two plans agree in them iff they compute the same expressions.

    ``known`` holds all expressions met so far. Rendezvous are compared by what their members hand over.
    """
    out: dict[str, dict[str, int]] = {}
    meets: dict[int, dict[str, int]] = {}
    owners = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    for owner, program in owners.items():
        value: dict[str, int] = {}
        for name in program.inputs:
            value[name] = known.setdefault(("input", name), len(known))
        for op in program.ops:
            key: tuple[object, ...] = (*_head(op), tuple(value[v] for v in op.ins))
            value[op.out] = known.setdefault(key, len(known))
            if op.name in COLLECTIVES:
                meets.setdefault(op.integer("seq"), {})[owner] = value[op.out]
        out[owner] = {name: value[v] for name, v in program.outputs.items()}
    # A collective of one class must meet the same collectives of the others.
    partners = sorted(tuple(sorted(m.items())) for m in meets.values())
    out["rendezvous"] = {str(i): known.setdefault(p, len(known)) for i, p in enumerate(sorted(set(partners)))}
    return out
