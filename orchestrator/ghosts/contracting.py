"""Values of sums and of products of matrices: terms with names, times what is the same in all summands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.program import Op

from ..cells import Unfollowable
from ..relating.access import Access, access
from .moving import Moving, Part, along
from .scope import Hop, Scope
from .sums import Definition, Places, Sums, placed, places_of
from .values import ONE, UNIT, Exponential, Inverse, Letter, Powers, Value, letter, number

#: Products that one op may sum.
MOST_PRODUCTS = 64


class Contracting:
    """The sums of one program."""

    def __init__(self, scope: Scope, moving: Moving) -> None:
        self.scope, self.writer, self.moving = scope, scope.writer, moving
        self.sums = Sums(self.writer, self._definition, scope.plain)
        #: What the last op was on the way to its value, if that takes two steps.
        self.step: Value | None = None
        self._open: set[str] = set()
        moving.parted = self._parted

    def summed(self, op: Op) -> Value | None:
        """What a sum, or a product of matrices, is; ``None`` of a maximum."""
        pattern = self._pattern(op)
        if pattern is None:
            return None
        places, sizes = _places(op, pattern)
        rank = len(pattern.out)
        summed = tuple(p for p in range(rank, len(sizes)) if sizes[p] > 1)
        operands = [
            along(self.scope.value(v), [places[n] for n in names])
            for v, names in zip(op.ins, pattern.operands, strict=True)
        ]
        into: dict[int, Places] = {}
        for operand in operands:
            for x in operand.letters():
                joined = zip(x.at, self.writer.merged(x.name), strict=True)
                into |= {p: split for p, split in joined if len(split) > 1}
        if not into:
            return self._products(operands, summed, sizes, op.type.dtype)
        # A batch and its heads in one dimension are two: equal sums have equal names either way.
        apart, wide = dict[int, Places](), list[int]()
        for p, n in enumerate(sizes):
            split = into.get(p, (n,))
            apart[p] = tuple(range(len(wide), len(wide) + len(split)))
            wide += split
        operands = [self.moving.split(v, into, apart) for v in operands]
        found = self._products(operands, tuple(q for p in summed for q in apart[p]), wide, op.type.dtype)
        back = [(apart[p], (p,)) for p in range(rank) if sizes[p] > 1]
        if self.step is not None:
            self.step = self.moving.regrouped(self.step, back, wide, sizes)
        return self.moving.regrouped(found, back, wide, sizes)

    def _products(self, operands: Sequence[Value], summed: Places, sizes: Sequence[int], dtype: str) -> Value:
        """The sum of the product of some values over some dimensions."""
        values, inner = self.scope.values, set(summed)
        whole, parts = number(ONE), 0
        for v in operands:
            whole, parts = values.times(whole, v), parts + sum(v.below.values())
        within = {f: k for f, k in whole.below.items() if places_of(Inverse(f)) & inner}
        cancels = sum(whole.below.values()) < parts or _meet(operands, inner)
        apart = within or any(
            isinstance(a, Inverse) and places_of(a) & inner for m in whole.above for a, _ in m
        )
        if apart and not (cancels and len(whole.above) == 1):
            raise Unfollowable("a sum of quotients with different denominators")
        if len(whole.above) > MOST_PRODUCTS:
            raise Unfollowable("a sum of too many products")
        under: Powers = frozenset((Inverse(f), Fraction(k)) for f, k in within.items())
        total = number(Fraction(0))
        for m, c in whole.above.items():
            total = values.plus(total, self._term(m | under, c, summed, sizes, dtype))
        outside = {f: k for f, k in whole.below.items() if f not in within}
        total = values.times(total, Value({UNIT: ONE}, outside))
        if cancels:
            self.step = self._in_two_steps(operands, whole, total, summed, sizes, dtype)
        return total

    def _term(self, m: Powers, c: Fraction, summed: Places, sizes: Sequence[int], dtype: str) -> Value:
        """The sum of one product."""
        inner = frozenset((a, k) for a, k in m if places_of(a) & set(summed))
        reached = {p for a, _ in inner for p in places_of(a)}
        outside = Value({m - inner: c * math.prod(sizes[p] for p in summed if p not in reached)}, {})
        if not inner:
            return outside
        x = self.sums.over(inner, tuple(p for p in summed if p in reached), sizes, dtype)
        atoms = [a for a, _ in inner]
        if not all(map(self.scope.plain, atoms)):
            self.scope.lively.add(x.name)
        if all(map(self.scope.values.atom_positive, atoms)):
            self.scope.signed.add(x.name)
        return self.scope.values.times(outside, letter(x.name, x.at))

    def _in_two_steps(
        self,
        operands: Sequence[Value],
        whole: Value,
        total: Value,
        summed: Places,
        sizes: Sequence[int],
        dtype: str,
    ) -> Value:
        """The sum of a product whose operands cancel: a law for each summand first, then the sum."""
        writer, letters = self.writer, self.scope.roots(operands)
        factors = [writer.quotient(v, sizes, dtype) for v in operands]
        product, have = writer.folded("multiply", factors, sizes)
        lowest = writer.placed(*writer.quotient(whole, sizes, dtype), have, sizes)
        name, at = writer.reduced((product, have), [p for p in have if p in summed], sizes)
        found = writer.placed(*writer.quotient(total, sizes, dtype), at, sizes)
        self.scope.hops += [Hop(product, lowest, letters), Hop(name, found, letters)]
        return letter(name, at)

    def certain(self, op: Op, value: Value) -> Value | None:
        """Names a sum over masked rows by the program's own sum, without the powers that stand before it.

        That the former is positive does not show; of the program's own it does. ``None`` of any other sum.
        """
        ((m, c),) = value.above.items() if len(value.above) == 1 else ((UNIT, ONE),)
        own = [a for a, k in m if isinstance(a, Letter) and k == 1 and self.sums.own(a.name)]
        outside = frozenset(f for f in m if f[0] not in own)
        if value.below or len(own) != 1 or not all(isinstance(a, Exponential) for a, _ in outside):
            return None
        x, values, writer = own[0], self.scope.values, self.writer
        if values.atom_positive(x) or not self.scope.certain(op.out):
            return None
        away = Value({frozenset((a, -k) for a, k in outside): 1 / c}, {})
        whole = values.times(self.scope.letter(op.out), away)
        name, at = writer.quotient(whole, op.type.shape, op.type.dtype)
        if at != x.at:
            return None
        factors = self.sums.renamed(x.name, name)
        self.scope.signed.add(name)
        self.scope.lively.add(name)
        found = values.times(letter(name, at), Value({outside: c}, {}))
        ghost = writer.value(found, op.type)
        self.scope.hops.append(Hop(op.out, ghost, frozenset(), given=True))
        # Each summand of the one is that of the other, without the powers.
        pattern = self._pattern(op)
        assert pattern is not None
        places, sizes = _places(op, pattern)
        summed = [p for p in range(len(pattern.out), len(sizes)) if sizes[p] > 1]
        term = along(self.scope.letter(op.ins[0]), [places[n] for n in pattern.operands[0]])
        product, have = writer.quotient(values.times(term, away), sizes, op.type.dtype)
        lowest = writer.product(placed(factors, dict(enumerate((*at, *summed)))), ONE, sizes, op.type.dtype)
        total, left = writer.reduced((product, have), summed, sizes)
        letters = self.scope.roots_of(op.ins)
        both = frozenset((op.out, product))
        self.scope.hops += [
            Hop(product, writer.placed(*lowest, have, sizes), letters),
            Hop(name, writer.placed(total, left, at, sizes), letters, opened=both),
            Hop(total, writer.placed(x.name, x.at, left, sizes), letters),
        ]
        return found

    def _parted(self, name: str, made: str, part: Part) -> None:
        """A part of a sum is a sum of parts: rows of it may be known where others are not."""
        definition = self.sums.definition(name)
        if definition is None or not self.sums.own(name) or 1 in part.shape:
            return
        rank = len(part.shape)

        def cut(x: Letter) -> Letter:
            rows = [p for p in x.at if p < rank]
            shape = self.writer.types[x.name].shape
            if all(shape[d] == part.shape[p] for d, p in enumerate(x.at) if p < rank) or not rows:
                return x
            whole = Affine(0), 1
            starts, strides = zip(
                *((part.starts[p], part.strides[p]) if p < rank else whole for p in x.at), strict=True
            )
            sizes = tuple(part.shape[p] if p < rank else n for p, n in zip(x.at, shape, strict=True))
            return Letter(self.moving.part(x.name, Part(starts, strides, sizes)), x.at, x.truth)

        (factors,) = Value({definition.factors: ONE}, {}).renamed(cut).above
        sizes = [*part.shape, *definition.sizes]
        x = self.sums.over(factors, definition.summed, sizes, self.writer.types[made].dtype)
        self.scope.lively.add(x.name)
        self.sums.also(made, x)
        ghost = self.writer.placed(x.name, x.at, tuple(range(rank)), sizes)
        hop = Hop(made, ghost, self.scope.roots([Value({factors: ONE}, {})]))
        if hop not in self.scope.hops and ghost != made:
            self.scope.hops.append(hop)

    def _pattern(self, op: Op) -> Access | None:
        found = access(op, [self.writer.types[v].shape for v in op.ins])
        return found if found is not None and found.kind == "add" else None

    def _definition(self, name: str) -> Definition | None:
        """What a tensor of the program is a sum of, if it is one of products of letters."""
        op = self.scope.ops.get(name)
        if op is None or op.name not in ("dot_general", "reduce") or name in self._open:
            return None
        pattern = self._pattern(op)
        if pattern is None or any(n == 1 for n in op.type.shape):
            return None
        places, sizes = _places(op, pattern)
        factors: Powers = UNIT
        self._open.add(name)
        try:
            for v, names in zip(op.ins, pattern.operands, strict=True):
                x = self.scope.alone(along(self.scope.value(v), [places[n] for n in names]))
                if x is None or (x, ONE) in factors:
                    return None
                factors |= {(x, ONE)}
        finally:
            self._open.discard(name)
        rank = len(pattern.out)
        return Definition(factors, tuple(range(rank, len(sizes))), tuple(sizes[rank:]))


def _places(op: Op, pattern: Access) -> tuple[dict[str, int], list[int]]:
    """Numbers of the dimensions of a result, and of those that are summed behind them; their sizes."""
    names = (*pattern.out, *(n for n, _ in pattern.summed))
    return {n: d for d, n in enumerate(names)}, [*op.type.shape, *(n for _, n in pattern.summed)]


def _meet(operands: Sequence[Value], summed: set[int]) -> bool:
    """Whether a law is needed for the product of operands, for each element of what is summed."""
    met: set[object] = set()
    for v in operands:
        atoms = {a for m in v.above for a, _ in m if places_of(a) & summed}
        own: set[object] = {a.of for a in atoms if isinstance(a, Exponential)}
        own |= {a for a in atoms if isinstance(a, Letter) and a.truth}
        if own & met:
            return True
        met |= own
    return False
