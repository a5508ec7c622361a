"""Microbatches become one program and a time axis: what a loop over slices of the batch repeats is said once.

Which ops belong to a microbatch is told by what they are made of: slices that tile an entry of the batch are
microbatches, an op that rests on one of them alone is of that microbatch, and so is what only such ops read
(a weight that is gathered anew). The ops of all microbatches must correspond, integers affine in the
microbatch's number; a sum or a stack of one value of each is a reduction or a stack over time. What rests on
no microbatch, or on such a sum, is computed once, and is the same in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from certificates.plan.affine import Affine
from certificates.plan.ops import MESSAGES
from certificates.plan.plan import Group, Mesh, Plan
from certificates.plan.program import Attr, Loc, Op, Program

from .builder import MEETING, WAIT
from .reach import Reach
from .recorded import ISSUED, Place, pruned
from .views import added_up, composed, is_zero, opened, renames, tilings

#: The name of the time axis, and of the group that joins its runs.
AXIS, RUNS = "mb", "microbatches"


class NotAlike(Exception):
    """The microbatches cannot be one program; ``loc`` is the place of the first op that shows it."""

    def __init__(self, message: str, loc: Loc | None = None) -> None:
        super().__init__(message)
        self.loc = loc


@dataclass(frozen=True)
class Folded:
    """A program at every microbatch, and the traced one that it was made of.

    ``seqs`` has for each rendezvous of the unrolled program its number here, and the microbatch, or ``None``
    for what is met once; ``places`` likewise for each value of ``traced`` the number of its op here.
    """

    program: Program
    seqs: Mapping[int, Place]
    traced: Program
    places: Mapping[str, Place]


def fold_plan(
    plan: Plan, count: int, seen: Mapping[str, Program] | None = None
) -> tuple[Plan, Mapping[int, Place], Mapping[str, Folded]]:
    """The plan with a time axis, where each rendezvous of the unrolled plan is there, and each class.

    ``seen`` are the programs of the classes with the places where they wait.
    """
    if AXIS in (*plan.mesh.axes, *plan.by_class) or RUNS in plan.groups:
        raise NotAlike(f"{AXIS} or {RUNS} is the name of something else")
    first = 1 + max(
        (op.integer("seq") for c in plan.classes for op in c.program.ops if op.name in MEETING | MESSAGES),
        default=-1,
    )
    seqs: dict[int, Place] = {}
    classes = []
    made: dict[str, Folded] = {}
    foldings = [_Folding(composed((seen or {}).get(cls.name, cls.program)), count) for cls in plan.classes]
    _tell_one_another(foldings)
    for folding in foldings:
        _open_stacks(folding)
    for cls, folding in zip(plan.classes, foldings, strict=True):
        found = made[cls.name] = folding.folded(first)
        first += sum(op.attrs.get("group") == RUNS for op in found.program.ops)
        for seq, place in found.seqs.items():
            if seqs.setdefault(seq, place) != place:
                raise NotAlike(f"classes meet in rendezvous {seq} at different microbatches")
        classes.append(replace(cls, box={AXIS: (0, count), **cls.box}, program=found.program))
    mesh = Mesh({AXIS: count, **plan.mesh.axes}, (AXIS,))
    groups = {**plan.groups, RUNS: Group((AXIS,), (), count)}
    return replace(plan, mesh=mesh, groups=groups, classes=tuple(classes), version=2), seqs, made


def blanked(op: Op) -> tuple[tuple[tuple[str, object], ...], tuple[int, ...]]:
    """The attributes without constants of affine forms and numbers of rendezvous; and these constants."""
    kept: list[tuple[str, object]] = []
    numbers: list[int] = []
    for key, value in sorted(op.attrs.items()):
        forms = value if isinstance(value, tuple) else (value,)
        affine = [f for f in forms if isinstance(f, Affine)]
        numbers += [f.const for f in affine]
        if key != "seq" and key not in ISSUED:
            kept.append((key, tuple(f.terms for f in affine) if affine else value))
    return tuple(kept), tuple(numbers)


def _moving(op: Op, steps: Sequence[int]) -> Mapping[str, Attr]:
    """The attributes with these steps from microbatch to microbatch."""
    rest = iter(steps)

    def form(value: object) -> object:
        return value + Affine.of(0, {AXIS: next(rest)}) if isinstance(value, Affine) else value

    return {
        key: tuple(map(form, value)) if isinstance(value, tuple) else form(value)  # type: ignore[misc]
        for key, value in sorted(op.attrs.items())
    }


def _tell_one_another(foldings: Sequence[_Folding]) -> None:
    """What is received is of the microbatch of what was sent: a stage in the middle cuts no batch."""
    learnt = list(foldings)
    while learnt:
        for folding in learnt:
            folding.settle()
        sent = {seq: run for folding in foldings for seq, run in folding.sent().items()}
        learnt = [folding for folding in foldings if folding.receive(sent)]


def _open_stacks(folding: _Folding) -> None:
    """A stack of one value of each microbatch, in another order than theirs, that is added up is a sum."""
    summed = added_up(folding.program)
    found = {op.out: folding.homes(op.ins) for op in folding.program.ops if op.out in summed}
    every = list(range(folding.count))
    turned = [out for out, of in found.items() if of != every and Counter(of) == Counter(every)]
    if turned:
        folding.program = opened(folding.program, turned)
        folding.__post_init__()


def _timed(attrs: Mapping[str, Attr]) -> Mapping[str, Attr]:
    """The attributes of an op; a message keeps its time."""
    here = Affine.symbol(AXIS)
    return {
        k: (here, *v) if k in ("to", "from") else v  # type: ignore[misc]
        for k, v in attrs.items()
        if k not in ISSUED
    }


@dataclass
class _Folding:
    """One program. ``_home`` has the microbatch of a value, or ``None``; ``_rests`` all that it rests on."""

    program: Program
    count: int
    #: Values that show which microbatch they belong to.
    shown: dict[str, int] = field(default_factory=dict)
    _rests: dict[str, frozenset[int]] = field(default_factory=dict)
    _home: dict[str, int | None] = field(default_factory=dict)
    #: Value of a microbatch to its number among the corresponding ones, and back.
    _names: dict[str, int] = field(default_factory=dict)
    _members: list[dict[int, Op]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._made = {op.out: op for op in self.program.ops}
        self._readers: dict[str, list[Op]] = {}
        for op in self.program.ops:
            for value in op.ins if op.name != WAIT else ():
                self._readers.setdefault(value, []).append(op)
        self._results = set(self.program.outputs.values())
        self._reach = Reach(self.program, self._home, self._names)
        for places in tilings(self.program):
            if len(places) == self.count:
                self.shown |= {op.out: i for i, ops in enumerate(places) for op in ops}

    def folded(self, first: int) -> Folded:
        """The program at every microbatch; what joins them has numbers from ``first`` on."""
        self.settle()
        self._correspond()
        joined: dict[str, list[list[str]]] = {}  # by root: values of each microbatch, and those of none
        inside: set[str] = set()
        for op in reversed(self.program.ops):
            joins = op.name != WAIT and self._joins(op)
            if len(self._rests[op.out]) > 1 and op.out not in inside and joins:
                joined[op.out], chain = self._joined(op)
                inside |= chain
                self._share(joined[op.out][-1])
        return self._written(joined, inside, first)

    # --- which microbatch ----------------------------------------------------------------------------------

    def sent(self) -> dict[int, int]:
        """The microbatch of each message that this class sends and that belongs to one."""
        homes = {op.integer("seq"): self._rests[op.out] for op in self.program.ops if op.name == "send"}
        return {seq: next(iter(rests)) for seq, rests in homes.items() if len(rests) == 1}

    def receive(self, sent: Mapping[int, int]) -> bool:
        """Learn from the messages of other classes; is anything new?"""
        found = {
            op.out: sent[op.integer("seq")]
            for op in self.program.ops
            if op.name == "recv" and op.integer("seq") in sent and op.out not in self.shown
        }
        self.shown |= found
        return bool(found)

    def settle(self) -> None:
        """Which microbatch each value belongs to, by what it rests on, and by who reads it."""
        for name in self.program.inputs:
            self._rests[name] = frozenset()
        for op in self.program.ops:
            own = frozenset((self.shown[op.out],)) if op.out in self.shown else frozenset()
            self._rests[op.out] = own.union(*(self._rests[v] for v in op.ins))
        for name in self.program.inputs:
            self._home[name] = None
        for op in reversed(self.program.ops):
            rests = self._rests[op.out]
            if not rests and op.out not in self._results and op.name not in MESSAGES:
                readers = [self._home[r.out] for r in self._readers.get(op.out, ())]
                self._home[op.out] = readers[0] if len(set(readers)) == 1 else None
            else:
                self._home[op.out] = next(iter(rests)) if len(rests) == 1 else None

    def _correspond(self) -> None:
        """Number the values of each microbatch alike: by what they are, and among equals by their order."""
        numbers: dict[object, int] = {}
        seen: Counter[tuple[int, object]] = Counter()
        self._members = [{} for _ in range(self.count)]
        for op in self.program.ops:
            home = self._home[op.out]
            if home is None or op.name == WAIT:
                continue
            operands = tuple(self._names.get(v, v) if self._home[v] is not None else v for v in op.ins)
            kind = op.name, op.type, blanked(op)[0], operands
            place = seen[home, kind]
            seen[home, kind] += 1
            number = numbers.setdefault((kind, place), len(numbers))
            self._names[op.out] = number
            self._members[home][number] = op

    # --- what joins them -----------------------------------------------------------------------------------

    def _joins(self, op: Op) -> bool:
        """Is an operand that of a microbatch, or of some only?"""
        return any(0 < len(self._rests[v]) < self.count for v in op.ins)

    def _joined(self, root: Op) -> tuple[list[list[str]], set[str]]:
        """The values that a sum or a stack is of, by microbatch, and the ops that make it up."""
        if root.name == "concatenate":
            return [[v] for v in self._in_order(root)] + [[]], set()
        if root.name != "add":
            raise NotAlike(f"{root.name} joins microbatches, where only sums and stacks are folded", root.loc)
        chain = {root.out}
        leaves: list[str] = []
        stack = list(root.ins)
        while stack:
            value = stack.pop()
            op = self._made.get(value)
            if op is not None and len(self._rests[value]) > 1 and self._joins(op):
                self._only_here(op, "a sum over some microbatches is read before it is whole")
                if op.name != "add" and not renames(self.program, op):
                    raise NotAlike(f"{op.name} joins some microbatches, and a sum reads it", op.loc)
                chain.add(value)
                stack += op.ins
            else:
                leaves.append(value)
        of = self._by_home(leaves)
        while not self._alike(of):
            # 0 + x, or two gradients one after the other: what is added up inside a microbatch is opened.
            opened = [v for values in of[:-1] for v in values if self._opens(v)]
            if not opened:
                raise NotAlike("microbatches add values that do not correspond", root.loc)
            last = max(self._names[v] for v in opened)
            for value in (v for v in opened if self._names[v] == last):
                leaves.remove(value)
                leaves += self._made[value].ins
            of = self._by_home(leaves)
        return of, chain

    def _share(self, values: Sequence[str]) -> None:
        """What a sum is also of, and no microbatch's own, is computed once, though only one may read it."""
        stack = list(values)
        while stack:
            value = stack.pop()
            if self._home[value] is not None:
                self._home[value] = None
                self._reach.forget()
                stack += self._made[value].ins

    def homes(self, values: Sequence[str]) -> list[int | None]:
        """The microbatches that values rest on."""
        return [self._home[v] if self._rests[v] else None for v in values]

    def _by_home(self, leaves: Sequence[str]) -> list[list[str]]:
        of: list[list[str]] = [[] for _ in range(self.count + 1)]
        for value in leaves:
            (home,) = self.homes([value])
            if home is not None or not is_zero(self._made, value):
                of[self.count if home is None else home].append(value)
        return of

    def _alike(self, of: Sequence[Sequence[str]]) -> bool:
        return all(
            sorted(map(self._names.__getitem__, values)) == sorted(map(self._names.__getitem__, of[0]))
            and self._reach.of(values, i) == self._reach.of(of[0], 0)
            for i, values in enumerate(of[:-1])
        )

    def _opens(self, value: str) -> bool:
        op = self._made[value]
        joins = op.name == "add" or renames(self.program, op)
        return joins and len(self._readers[value]) == 1 and value not in self._results

    def _in_order(self, root: Op) -> Sequence[str]:
        alike = len({self._names.get(v) for v in root.ins}) == 1
        if not alike or self.homes(root.ins) != list(range(self.count)):
            raise NotAlike("a stack is not of one value of each microbatch, in their order", root.loc)
        return root.ins

    def _only_here(self, op: Op, message: str) -> None:
        if op.out in self._results or len(self._readers.get(op.out, ())) > 1:
            raise NotAlike(message, op.loc)

    # --- the folded program --------------------------------------------------------------------------------

    def _written(self, joined: Mapping[str, list[list[str]]], inside: set[str], first: int) -> Folded:
        needed, roots = self._needed(joined)
        names: dict[str, str] = {}
        ops: list[Op] = []
        seqs: dict[int, Place] = {}

        def add(op: Op, ins: Sequence[str], attrs: Mapping[str, Attr], out: str | None = None) -> str:
            ops.append(replace(op, out=f"%{len(ops)}", ins=tuple(ins), attrs=attrs))
            if out is not None:
                names[out] = ops[-1].out
            return ops[-1].out

        for op in self.program.ops:
            home, rests = self._home[op.out], self._rests[op.out]
            if op.name == WAIT:
                continue
            if op.out in joined:
                self._join(op, joined[op.out], names, add, first + roots.index(op.out))
            elif op.out in inside or home not in (None, 0):
                continue
            elif home == 0:
                if self._names[op.out] in needed:
                    add(op, [names.get(v, v) for v in self._readable(op)], self._attrs(op, seqs), op.out)
            else:
                if 0 < len(rests) < self.count:
                    raise NotAlike(f"{op.name} reads what some microbatches have joined", op.loc)
                if op.name in MEETING | MESSAGES:
                    seqs[op.integer("seq")] = op.integer("seq"), None
                add(op, [names.get(v, v) for v in op.ins], _timed(op.attrs), op.out)
        outputs = {}
        for name, value in self.program.outputs.items():
            if self._rests[value] and self._home[value] is not None:
                raise NotAlike(f"{name} is made of one microbatch", self._made[value].loc)
            outputs[name] = names.get(value, value)
        program, kept = pruned(Program(self.program.inputs, tuple(ops), outputs))
        over = {i for i, op in enumerate(program.ops) if op.attrs.get("group") == RUNS}
        numbers = {v: kept[n] for v, n in names.items() if n in kept and kept[n] not in over}
        places = dict(self._places(numbers))
        return Folded(program, seqs, self.program, places)

    def _places(self, numbers: Mapping[str, int]) -> Iterator[tuple[str, Place]]:
        """Where each value is in the folded program; ``numbers`` has those of the first microbatch."""
        for op in self.program.ops:
            home = self._home[op.out]
            first = None if op.name == WAIT else op
            if home is not None and first is not None:
                first = self._members[0].get(self._names[op.out])
            if first is not None and first.out in numbers:
                yield op.out, (numbers[first.out], home)

    def _needed(self, joined: Mapping[str, list[list[str]]]) -> tuple[set[int], list[str]]:
        """Numbers of what the sums, and the rendezvous of microbatches, are made of; the same in each."""
        reached = [0] * self.count
        for of in joined.values():
            for i in range(self.count):
                reached[i] |= self._reach.of(of[i], i)
        for i, members in enumerate(self._members):
            meetings = [op.out for op in members.values() if op.name in MEETING | MESSAGES]
            reached[i] |= self._reach.of(meetings, i)
        sets = [{n for n, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"} for bits in reached]
        for i, found in enumerate(sets[1:], 1):
            for number in sorted(found ^ sets[0]):
                holder = self._members[i if number in found else 0][number]
                other = 0 if number in found else i
                message = f"microbatch {other} runs no {holder.name} like that of microbatch {i - other}"
                raise NotAlike(message, holder.loc)
        return sets[0], [op.out for op in self.program.ops if op.out in joined]

    def _readable(self, op: Op) -> tuple[str, ...]:
        """The operands of an op of a microbatch."""
        if any(self._home[v] is None and self._rests[v] for v in op.ins):
            raise NotAlike(f"{op.name} of a microbatch reads what others have joined", op.loc)
        return op.ins

    def _attrs(self, op: Op, seqs: dict[int, Place]) -> Mapping[str, Attr]:
        """The attributes of an op at every microbatch."""
        alike = [members[self._names[op.out]] for members in self._members]
        numbers = [blanked(other)[1] for other in alike]
        steps = [b - a for a, b in zip(numbers[0], numbers[1], strict=True)]
        for i, these in enumerate(numbers):
            if any(n != a + i * s for n, a, s in zip(these, numbers[0], steps, strict=True)):
                raise NotAlike(f"a number of {op.name} is not affine in the microbatch", alike[i].loc)
        if op.name in MEETING | MESSAGES:
            for i, other in enumerate(alike):
                seqs[other.integer("seq")] = op.integer("seq"), i
        return _timed(_moving(op, steps))

    def _join(
        self, root: Op, of: Sequence[Sequence[str]], names: dict[str, str], add: object, seq: int
    ) -> None:
        """A sum or stack over time, and what is added to it that is the same in every run."""
        assert callable(add)

        def of_type(value: str, dtype: str) -> str:
            made, alike = names.get(value, value), self.program.type_of(value).dtype == dtype
            return made if alike else add(replace(root, name="convert"), (made,), {})

        dtypes = {self.program.type_of(v).dtype for v in of[0]}
        (dtype,) = dtypes if len(dtypes) == 1 else {root.type.dtype}
        total = of_type(of[0][0], dtype)
        summed = replace(root, name="add", type=replace(root.type, dtype=dtype))
        for value in of[0][1:]:
            total = add(summed, (total, of_type(value, dtype)), {})
        attrs: dict[str, Attr] = {"group": RUNS, "seq": seq}
        if root.name == "concatenate":
            total = add(replace(root, name="all_gather"), (total,), {**attrs, "dim": root.integer("dim")})
        else:
            total = add(replace(summed, name="all_reduce"), (total,), {**attrs, "kind": "add"})
        if dtype != root.type.dtype:
            total = add(replace(root, name="convert"), (total,), {})
        for value in of[-1]:
            total = add(replace(root, name="add"), (total, of_type(value, root.type.dtype)), {})
        names[root.out] = total
