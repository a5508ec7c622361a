"""Follows a program op by op: what exponentials, and what is made of them, are in lowest terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.program import Op, Program
from certificates.plan.types import rational

from ..cells import Unfollowable
from ..relating.access import access
from .sums import Definition, Places, Sums, placed, places_of
from .values import OMEGA, UNIT, Atom, Exponential, Inverse, Letter, Powers, Value, Values, letter, number
from .writing import MOVES, Writer, groups

#: Ops with laws of their own; what is made of their results is followed.
LAWFUL = frozenset(("exponential", "log", "logistic"))
#: Sums of so many tensors that no law is about are seen through, behind an exponential.
FEW = 4
#: Products that one op may sum.
MOST_PRODUCTS = 64
ARITHMETIC = frozenset(("add", "subtract", "negate", "multiply", "divide", "convert", "select"))
ONE = Fraction(1)


@dataclass(frozen=True)
class Hop:
    """A tensor of a program, the ghost that it equals, and the letters of what it is made of. It is opened by its
    op, but if it is ``given``; so are tensors that are ``opened``, whatever they equal."""

    name: str
    ghost: str
    letters: frozenset[str]
    given: bool = False
    opened: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Followed:
    """A program with its ``ghosts``, the ``hops`` to them in order, the tensors of the program that are ``seen``
    through behind an exponential, and ``sums`` of products of letters, which have names. A program ``merges`` if it
    divides by a sum of sums of exponentials."""

    program: Program
    ghosts: frozenset[str]
    hops: tuple[Hop, ...]
    seen: frozenset[str]
    sums: frozenset[str]
    merges: bool


class Follower:
    """The values of one program; ``positive`` and ``nonnegative`` say it of tensors of the program."""

    def __init__(
        self, program: Program, positive: Callable[[str], bool], nonnegative: Callable[[str], bool]
    ) -> None:
        self.program, self.writer = program, Writer(program)
        self.ops = {op.out: op for op in program.ops}
        self.sums = Sums(self.writer, self._definition, self._plain_atom)
        self._signs: dict[str, bool] = {}
        self.values = Values(lambda n: self._signs.get(n, False) or (n in self.ops and positive(n)),
                             lambda n: self._signs.get(n, False) or (n in self.ops and nonnegative(n)))
        self._known: dict[str, Value] = {}
        self._lively: set[str] = set()
        #: What the last op was on the way to its value, if that takes two steps.
        self._step: Value | None = None
        self._through: set[str] = set()
        #: By mask its truth value as a number, or that of its opposite.
        self._truths: dict[str, tuple[str, bool]] = {}
        self._open: set[str] = set()
        self.hops: list[Hop] = []

    def follow(self) -> Followed:
        """The program with its ghosts, each behind the first op that needs it."""
        ops: list[Op] = []
        for op in self.program.ops:
            ops.append(op)
            self.writer.passed(op)
            before = len(self.writer.ghosts)
            if op.type.sort == "Real" and (op.name in LAWFUL or any(v in self._lively for v in op.ins)):
                self._pass(op)
            ops += self.writer.ghosts[before:]
        needed = {h.ghost for h in self.hops}
        own = self.ops.keys()
        for op in reversed(ops):
            if op.out in needed:
                needed.update(op.ins)
        kept = tuple(op for op in ops if op.out in own or op.out in needed)
        return Followed(
            Program(self.program.inputs, kept, self.program.outputs),
            frozenset(needed - own),
            tuple(self.hops),
            frozenset(self._through),
            frozenset(self.sums.named()),
            any(map(self._merges, self._known.values())),
        )

    def _pass(self, op: Op) -> None:
        self.values.begin()
        self._step, hops = None, len(self.hops)
        try:
            value = self._by_rule(op)
            if value is None:
                return
            if op.name == "reduce" and self._certain(op, value):
                return
            self._known[op.out] = value
            if not self._is_lively(value):
                self._through.add(op.out)
                return
            self._lively.add(op.out)
            if op.name in MOVES:
                return
            if any(a == OMEGA for a in value.atoms()):  # no ghost is infinite
                self._through.add(op.out)
                return
            ghost = self.writer.value(self._step or value, op.type)
        except Unfollowable:
            del self.hops[hops:]
            self._known.pop(op.out, None)
            self._lively.discard(op.out)
            return
        if ghost != op.out:
            letters = self._roots([self._value(v) for v in op.ins if self.writer.types[v].sort == "Real"])
            # Of a sum in two steps the first is proved by what is summed as it is, not by what that equals.
            self.hops.insert(hops, Hop(op.out, ghost, letters))

    def _roots(self, values: Sequence[Value]) -> frozenset[str]:
        """The letters of values that a proof need not open."""
        return frozenset(self.writer.root(x.name) for v in values for x in v.letters() if not x.truth)

    def _merges(self, value: Value) -> bool:
        return any(
            len(f) > 1 and all(any(isinstance(a, Letter) and a.name in self._lively for a, _ in m) for m, _ in f)
            for f in (*value.below, *(a.of for a in value.atoms() if isinstance(a, Inverse)))
        )

    def _is_lively(self, value: Value) -> bool:
        return bool(value.below) or not all(map(self._plain_atom, value.atoms()))

    # --- values --------------------------------------------------------------------------------------------

    def _value(self, name: str) -> Value:
        """What a tensor is: followed, or a letter, or a sum of few letters."""
        if name not in self._known:
            self._known[name] = self._plain(name)
        return self._known[name]

    def _plain(self, name: str) -> Value:
        op = self.ops.get(name)
        if op is not None and op.name == "constant":
            text = op.attrs["value"]
            if text == "-inf":
                return Value({frozenset({(OMEGA, ONE)}): ONE}, {})
            if isinstance(text, str) and text not in ("inf", "true", "false"):
                return number(rational(text))
        elif op is not None and op.type.sort == "Real" and not any(v in self._lively for v in op.ins):
            try:
                found = self._seen_through(op)
            except Unfollowable:
                found = None
            if found is not None and len(found.above) <= FEW and found.is_polynomial():
                self._through.add(name)
                return found
        return self._letter(name)

    def _letter(self, name: str) -> Value:
        shape = self.writer.types[name].shape
        return letter(self.writer.squeezed(name), tuple(d for d, n in enumerate(shape) if n > 1))

    def _seen_through(self, op: Op) -> Value | None:
        """Sums and multiples of tensors, and tensors in other places, of which no law is needed."""
        if op.name in ("add", "subtract", "negate", "broadcast_in_dim", "transpose"):
            return self._by_rule(op)
        if op.name == "reshape":
            squeezed = [tuple(n for n in self.writer.types[v].shape if n > 1) for v in (op.out, op.ins[0])]
            return self._by_rule(op) if squeezed[0] == squeezed[1] else None
        if op.name in ("multiply", "divide") and any(self._number(v) is not None for v in op.ins):
            return self._by_rule(op)
        if op.name == "select" and (self._chosen(op) or any(self._literal(v) for v in op.ins[1:])):
            return self._by_rule(op)
        return None

    def _literal(self, name: str) -> bool:
        return name in self.ops and self.ops[name].name == "constant"

    def _number(self, name: str) -> Fraction | None:
        op = self.ops.get(name)
        if op is None or op.name != "constant" or op.type.sort != "Real":
            return None
        value = self._value(name).above
        return value.get(UNIT, Fraction(0)) if not value.keys() - {UNIT} else None

    def _by_case(self, op: Op) -> Value:
        """What a mask chooses: a truth value times the one, and its opposite times the other."""
        mask, true, false = op.ins
        at = tuple(range(len(op.type.shape)))
        while mask in self.ops and self.ops[mask].name in ("broadcast_in_dim", "transpose"):
            moved = self.ops[mask]
            places = moved.ints("dims" if moved.name == "broadcast_in_dim" else "perm")
            if moved.name == "transpose":
                at = tuple(at[places.index(d)] for d in range(len(places)))
            else:
                at = tuple(at[d] for d in places)
            mask = moved.ins[0]
        shape = self.writer.types[mask].shape
        at = tuple(p for p, n in zip(at, shape, strict=True) if n > 1)
        if mask not in self._truths:
            kept, name = not self._literal(true), self.writer.squeezed(mask)
            shape = self.writer.types[name].shape
            name = name if kept else self.writer.op("not", (name,), shape, "i1")
            self._truths[mask] = self.writer.op("convert", (name,), shape, op.type.dtype), kept
        name, kept = self._truths[mask]
        truth = Value({frozenset({(Letter(name, at, truth=True), ONE)}): ONE}, {})
        other = self.values.plus(number(ONE), self.values.scaled(truth, -ONE))
        parts = (truth, other) if kept else (other, truth)
        return self.values.plus(
            self.values.times(parts[0], self._value(true)), self.values.times(parts[1], self._value(false))
        )

    def _chosen(self, op: Op) -> str | None:
        """What a constant mask chooses."""
        mask = self.ops.get(op.ins[0])
        if mask is None or mask.name != "constant":
            return None
        return op.ins[1] if mask.attrs["value"] == "true" else op.ins[2]

    def _by_rule(self, op: Op) -> Value | None:
        """What an op makes of the values of its operands; ``None`` of one that is not followed."""
        values = self.values
        match op.name:
            case "exponential":
                return values.exponential(self._value(op.ins[0]))
            case "log":
                return values.logarithm(self._value(op.ins[0]))
            case "logistic":
                return values.logistic(self._value(op.ins[0]))
            case "add":
                return values.plus(*map(self._value, op.ins))
            case "subtract":
                return values.plus(self._value(op.ins[0]), values.scaled(self._value(op.ins[1]), -ONE))
            case "negate":
                return values.scaled(self._value(op.ins[0]), -ONE)
            case "multiply":
                return values.times(*map(self._value, op.ins))
            case "divide":
                by = self._number(op.ins[1])
                if by is not None:
                    return values.scaled(self._value(op.ins[0]), 1 / by) if by else None
                return values.times(self._value(op.ins[0]), values.inverse(self._value(op.ins[1])))
            case "convert":
                return self._value(op.ins[0]) if self.writer.types[op.ins[0]].sort == "Real" else None
            case "select":
                chosen = self._chosen(op)
                return self._value(chosen) if chosen is not None else self._by_case(op)
            case "broadcast_in_dim":
                dims = op.ints("dims")
                return self._value(op.ins[0]).renamed(lambda x: Letter(x.name, tuple(dims[p] for p in x.at), x.truth))
            case "transpose":
                perm = op.ints("perm")
                return self._value(op.ins[0]).renamed(lambda x: Letter(x.name, tuple(map(perm.index, x.at)), x.truth))
            case "reshape":
                before, after = self.writer.types[op.ins[0]].shape, op.type.shape
                return self._regrouped(self._value(op.ins[0]), groups(before, after), before, after)
            case "dot_general" | "reduce":
                return self._summed(op)
        return None

    def _regrouped(
        self, value: Value, parts: Sequence[tuple[Places, Places]], before: Sequence[int], after: Sequence[int]
    ) -> Value:
        """Dimensions that are joined or split, group by group: letters that have some of a group get all of it."""
        there = {p: g for g in parts for p in g[0]}

        def moved(x: Letter) -> Letter:
            touched = [g for g in parts if any(p in g[0] for p in x.at)]
            if all(len(own) == len(new) == 1 for own, new in touched):
                return Letter(x.name, tuple(there[p][1][0] for p in x.at), x.truth)
            want = tuple(p for own, _ in touched for p in own)
            name = self.writer.placed(x.name, x.at, want, before)
            at = tuple(p for _, new in touched for p in new)
            return self._seen(self._like(self.writer.reshaped(name, [after[p] for p in at]), x.name), at, x.truth)

        return value.renamed(moved)

    def _split(self, value: Value, into: Mapping[int, Places], at: Mapping[int, Places]) -> Value:
        """Letters with dimensions taken apart into some sizes, and where these lie."""

        def moved(x: Letter) -> Letter:
            name, places = x.name, tuple(q for p in x.at for q in at[p])
            if any(p in into for p in x.at):
                own = self.writer.types[name].shape
                shape = [n for p, size in zip(x.at, own, strict=True) for n in into.get(p, (size,))]
                name = self._like(self.writer.reshaped(name, shape), x.name)
            return self._seen(name, places, x.truth)

        return value.renamed(moved)

    def _seen(self, name: str, at: Places, truth: bool) -> Letter:
        """A letter, by the name that it has where it is read as an operand."""
        if name in self.ops and name not in self._lively:
            value = self._value(name)
            ((m, c),) = value.above.items() if len(value.above) == 1 else ((UNIT, ONE),)
            ((x, k),) = m if len(m) == 1 else ((None, ONE),)
            if isinstance(x, Letter) and c == k == 1 and not value.below:
                return Letter(x.name, tuple(at[p] for p in x.at), x.truth)
        return Letter(name, at, truth)

    def _like(self, name: str, other: str) -> str:
        """A letter is what another one is, in other places."""
        if other in self._lively:
            self._lively.add(name)
        if self.values.atom_positive(Letter(other, ())):
            self._signs[name] = True
        return name

    # --- sums ----------------------------------------------------------------------------------------------

    def _summed(self, op: Op) -> Value | None:
        pattern = access(op, [self.writer.types[v].shape for v in op.ins])
        if pattern is None or pattern.kind != "add":
            return None
        rank = len(pattern.out)
        places = {n: d for d, n in enumerate((*pattern.out, *(n for n, _ in pattern.summed)))}
        sizes = [*op.type.shape, *(n for _, n in pattern.summed)]
        summed = tuple(p for p in range(rank, len(sizes)) if sizes[p] > 1)
        operands = []
        for v, names in zip(op.ins, pattern.operands, strict=True):
            at = [places[n] for n in names]
            operands.append(self._value(v).renamed(lambda x, at=at: Letter(x.name, tuple(at[p] for p in x.at), x.truth)))
        into = {}
        for v in operands:
            for x in v.letters():
                into |= {p: split for p, split in zip(x.at, self.writer.merged(x.name), strict=True) if len(split) > 1}
        if not into:
            return self._products(operands, summed, sizes, op.type.dtype)
        at, wide = dict[int, Places](), list[int]()
        for p, n in enumerate(sizes):
            split = into.get(p, (n,))
            at[p] = tuple(range(len(wide), len(wide) + len(split)))
            wide += split
        operands = [self._split(v, into, at) for v in operands]
        found = self._products(operands, tuple(q for p in summed for q in at[p]), wide, op.type.dtype)
        back = [(at[p], (p,)) for p in range(rank) if sizes[p] > 1]
        if self._step is not None:
            self._step = self._regrouped(self._step, back, wide, sizes)
        return self._regrouped(found, back, wide, sizes)

    def _products(self, operands: Sequence[Value], summed: Places, sizes: Sequence[int], dtype: str) -> Value:
        """The sum of the product of some values over some dimensions."""
        whole, parts = number(ONE), 0
        for v in operands:
            whole, parts = self.values.times(whole, v), parts + sum(v.below.values())
        within = {f: k for f, k in whole.below.items() if places_of(Inverse(f)) & set(summed)}
        cancels = sum(whole.below.values()) < parts or self._meet(operands, summed)
        apart = within or any(
            isinstance(a, Inverse) and places_of(a) & set(summed) for m in whole.above for a, _ in m
        )
        if apart and not (cancels and len(whole.above) == 1):
            raise Unfollowable("a sum of quotients with different denominators")
        if len(whole.above) > MOST_PRODUCTS:
            raise Unfollowable("a sum of too many products")
        under: Powers = frozenset((Inverse(f), Fraction(k)) for f, k in within.items())
        total = number(Fraction(0))
        for m, c in whole.above.items():
            term = self._sum_of(m | under, c, summed, sizes, dtype)
            total = self.values.plus(total, term)
        outside = {f: k for f, k in whole.below.items() if f not in within}
        total = self.values.times(total, Value({UNIT: ONE}, outside))
        if cancels:
            self._step = self._inside(operands, whole, total, summed, sizes, dtype)
        return total

    @staticmethod
    def _meet(operands: Sequence[Value], summed: Places) -> bool:
        """Whether a law is needed for the product of operands, for each element of what is summed."""
        seen: set[object] = set()
        for v in operands:
            own = {
                a.of if isinstance(a, Exponential) else a
                for m in v.above
                for a, _ in m
                if (isinstance(a, Exponential) or (isinstance(a, Letter) and a.truth)) and places_of(a) & set(summed)
            }
            if own & seen:
                return True
            seen |= own
        return False

    def _inside(
        self, operands: Sequence[Value], whole: Value, total: Value, summed: Places, sizes: Sequence[int], dtype: str
    ) -> Value:
        """The sum of a product whose operands cancel: first what is summed, a law for each element of it, then
        the sum."""
        letters = self._roots(operands)
        product = self.writer.folded("multiply", [self.writer.quotient(v, sizes, dtype) for v in operands], sizes)
        lowest = self.writer.quotient(whole, sizes, dtype)
        self.hops.append(Hop(product[0], self.writer.placed(*lowest, product[1], sizes), letters))
        name, at = self.writer.reduced(product, [p for p in product[1] if p in summed], sizes)
        self.hops.append(Hop(name, self.writer.placed(*self.writer.quotient(total, sizes, dtype), at, sizes), letters))
        return letter(name, at)

    def _sum_of(
        self, m: Powers, c: Fraction, summed: Places, sizes: Sequence[int], dtype: str
    ) -> Value:
        inner = frozenset((a, k) for a, k in m if places_of(a) & set(summed))
        reached = {p for a, _ in inner for p in places_of(a)}
        outside = Value({m - inner: c * math.prod(sizes[p] for p in summed if p not in reached)}, {})
        if not inner:
            return outside
        name = self.sums.over(inner, tuple(p for p in summed if p in reached), sizes, dtype)
        atoms = [a for a, _ in inner]
        if not all(map(self._plain_atom, atoms)):
            self._lively.add(name.name)
        if all(map(self.values.atom_positive, atoms)):
            self._signs[name.name] = True
        return self.values.times(outside, letter(name.name, name.at))

    def _plain_atom(self, atom: Atom) -> bool:
        return isinstance(atom, Letter) and atom.name not in self._lively

    def _certain(self, op: Op, value: Value) -> bool:
        """Names a sum over masked rows, of which it does not show that it is positive, by the program's own sum, of
        which it does: without the powers that stand before it."""
        ((m, c),) = value.above.items() if len(value.above) == 1 else ((UNIT, ONE),)
        sums = [a for a, k in m if isinstance(a, Letter) and k == 1 and self.sums.own(a.name)]
        outside = frozenset(f for f in m if f[0] not in sums)
        x = sums[0] if len(sums) == 1 else None
        if (
            x is None
            or value.below
            or not all(isinstance(a, Exponential) for a, _ in outside)
            or self.values.atom_positive(x)
            or not self.values.positive(op.out)
        ):
            return False
        own = self._letter(op.out)
        away = Value({frozenset((a, -k) for a, k in outside): 1 / c}, {})
        name, at = self.writer.quotient(self.values.times(own, away), op.type.shape, op.type.dtype)
        if at != x.at:
            return False
        self._signs[name] = True
        self._lively.add(name)
        factors, summed = self.sums.renamed(x.name, name)
        self._known[op.out] = self.values.times(letter(name, at), Value({outside: c}, {}))
        self._lively.add(op.out)
        ghost = self.writer.value(self._known[op.out], op.type)
        self.hops.append(Hop(op.out, ghost, frozenset(), given=True))
        # Each summand is that of the program's sum, without the powers.
        rank = len(op.type.shape)
        pattern = access(op, [self.writer.types[op.ins[0]].shape])
        assert pattern is not None
        names = {n: d for d, n in enumerate((*pattern.out, *(n for n, _ in pattern.summed)))}
        sizes = [*op.type.shape, *(n for _, n in pattern.summed)]
        places = [names[n] for n in pattern.operands[0]]
        term = self._letter(op.ins[0]).renamed(lambda y: Letter(y.name, tuple(places[p] for p in y.at), y.truth))
        product = self.writer.quotient(self.values.times(term, away), sizes, op.type.dtype)
        letters = self._roots([self._value(op.ins[0])])
        order = dict(enumerate((*at, *(p for p in range(rank, len(sizes)) if sizes[p] > 1))))
        lowest = self.writer.product(placed(factors, order), ONE, sizes, op.type.dtype)
        self.hops.append(Hop(product[0], self.writer.placed(*lowest, product[1], sizes), letters))
        total, have = self.writer.reduced(product, [p for p in product[1] if p >= rank], sizes)
        self.hops.append(Hop(name, self.writer.placed(total, have, at, sizes), letters, opened=frozenset({op.out, product[0]})))
        self.hops.append(Hop(total, self.writer.placed(x.name, x.at, have, sizes), letters))
        return True

    def _definition(self, name: str) -> Definition | None:
        """What a tensor of the program is a sum of, if it is one of products of letters."""
        op = self.ops.get(name)
        if op is None or op.name not in ("dot_general", "reduce") or name in self._open:
            return None
        pattern = access(op, [self.writer.types[v].shape for v in op.ins])
        if pattern is None or pattern.kind != "add" or any(n == 1 for n in op.type.shape):
            return None
        names = {n: d for d, n in enumerate((*pattern.out, *(n for n, _ in pattern.summed)))}
        factors: Powers = UNIT
        self._open.add(name)
        try:
            for v, own in zip(op.ins, pattern.operands, strict=True):
                value = self._value(v).renamed(lambda x, own=own: Letter(x.name, tuple(names[own[p]] for p in x.at), x.truth))
                ((m, c),) = value.above.items() if len(value.above) == 1 else ((UNIT, Fraction(0)),)
                if c != 1 or value.below or m & factors:
                    return None
                factors |= m
        finally:
            self._open.discard(name)
        rank = len(pattern.out)
        return Definition(
            factors, tuple(range(rank, rank + len(pattern.summed))), tuple(n for _, n in pattern.summed)
        )
