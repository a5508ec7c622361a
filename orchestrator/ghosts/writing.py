"""Writes ghosts as ops of a program, none of them twice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from certificates.plan.program import Attr, Op, Program
from certificates.plan.types import TensorType, format_rational

from ..cells import Unfollowable
from .values import (
    UNIT,
    Atom,
    Exponential,
    Factor,
    Inverse,
    Letter,
    Logarithm,
    Polynomial,
    Powers,
    Value,
    divided,
    exactly,
    joined,
    shared,
    told,
    told_powers,
)

#: Ops that one program may have besides its own: at least, and for each of its own.
LEAST, MOST_PER_OP = 64, 8
MOVES = frozenset(("broadcast_in_dim", "transpose", "reshape", "slice"))
Places = tuple[int, ...]


class Writer:
    """Ops behind those of a program, which are told of one by one as they are passed."""

    def __init__(self, program: Program) -> None:
        self.types = program.types()
        self.ghosts: list[Op] = []
        self._most = max(LEAST, MOST_PER_OP * len(program.ops))
        self._known: dict[object, str] = {}
        #: What a reshaped tensor was before.
        self._before: dict[str, str] = {}
        self._from: dict[str, str] = {}
        self._sums: dict[Factor, None] = {}
        self._next = 1 + max((int(op.out[1:]) for op in program.ops), default=-1)

    def passed(self, op: Op) -> None:
        """An op of the program itself, which no ghost has to repeat."""
        self._known.setdefault(_key(op), op.out)
        if op.name in MOVES:
            self._from[op.out] = op.ins[0]
        if op.name == "reshape":
            self._before[op.out] = self._before.get(op.ins[0], op.ins[0])

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """A tensor in another shape; one that was reshaped already is taken as it was."""
        before = self._before.get(name, name)
        kind = self.types[before]
        return before if kind.shape == tuple(shape) else self.op("reshape", (before,), shape, kind.dtype)

    def root(self, name: str) -> str:
        """The tensor that one is, in another shape or order."""
        while name in self._from:
            name = self._from[name]
        return name

    def merged(self, name: str) -> list[Places]:
        """The sizes that each dimension of a tensor was joined from."""
        kind = self.types[name]
        found: list[Places] = [(n,) for n in kind.shape]
        if name in self._before:
            before = self.types[self._before[name]].shape
            for own, new in groups(before, kind.shape):
                if len(new) == 1:
                    found[new[0]] = tuple(before[d] for d in own)
        return found

    def op(self, name: str, ins: Sequence[str], shape: Sequence[int], dtype: str, **attrs: Attr) -> str:
        made = Op(f"%{self._next}", name, tuple(ins), TensorType(dtype, tuple(shape)), attrs)
        key = _key(made)
        if key not in self._known:
            if len(self.ghosts) >= self._most:
                raise Unfollowable(f"more than {self._most} ghosts")
            self._known[key] = made.out
            self.types[made.out] = made.type
            self.ghosts.append(made)
            if name in MOVES:
                self._from[made.out] = ins[0]
            if name == "reshape":
                self._before[made.out] = ins[0]
            self._next += 1
        return self._known[key]

    # --- letters -------------------------------------------------------------------------------------------

    def squeezed(self, name: str) -> str:
        """A tensor without its dimensions of size 1."""
        kind = self.types[name]
        shape = tuple(n for n in kind.shape if n > 1)
        return name if shape == kind.shape else self.reshaped(name, shape)

    def placed(self, name: str, have: Places, want: Places, sizes: Sequence[int]) -> str:
        """A tensor that lies along some dimensions, along more of them, which are in order."""
        dtype = self.types[name].dtype
        ordered = tuple(sorted(have))
        if ordered != have:
            perm = tuple(have.index(p) for p in ordered)
            name = self.op("transpose", (name,), [sizes[p] for p in ordered], dtype, perm=perm)
        if ordered == want:
            return name
        dims = tuple(want.index(p) for p in ordered)
        return self.op("broadcast_in_dim", (name,), [sizes[p] for p in want], dtype, dims=dims)

    # --- values --------------------------------------------------------------------------------------------

    def value(self, value: Value, kind: TensorType) -> str:
        """A tensor of a type with this value."""
        found, have = self.quotient(value, kind.shape, kind.dtype)
        return self.placed(found, have, tuple(range(len(kind.shape))), kind.shape)

    def quotient(self, value: Value, sizes: Sequence[int], dtype: str) -> tuple[str, Places]:
        """A tensor with this value, along the dimensions that it has."""
        parts = []
        for above, below in fractions(value.above, value.below):
            part = self._polynomial(above, sizes, dtype)
            if below:
                under = sorted(below.items(), key=lambda f: told(Inverse(f[0])))
                factors = [self._polynomial(dict(f), sizes, dtype) for f, k in under for _ in range(k)]
                part = self.folded("divide", [part, *factors], sizes)
            parts.append(part)
        return self.folded("add", parts, sizes)

    def _polynomial(self, p: Polynomial, sizes: Sequence[int], dtype: str) -> tuple[str, Places]:
        """A polynomial: sums that were written before are kept together, what all terms share is apart."""
        if len(p) < 2:
            return self.product(*(next(iter(p.items()), (UNIT, Fraction(0)))), sizes, dtype)
        under: dict[Powers, dict[Powers, Fraction]] = {}
        for m, c in p.items():
            under.setdefault(frozenset(f for f in m if isinstance(f[0], Inverse)), {})[m] = c
        if len(under) > 1:
            apart = [under[m] for m in sorted(under, key=told_powers)]
            return self.folded("add", [self._polynomial(q, sizes, dtype) for q in apart], sizes)
        content, powers = shared(p)
        away: Powers = frozenset((a, -k) for a, k in powers.items())
        content = -content if max(p.values()) < 0 else content
        rest = {joined(m, away): c / content for m, c in p.items()}
        for f in self._sums:
            found = exactly(rest, dict(f)) if len(f) < len(rest) else None
            if found is not None:
                sums = [found, dict(f)]
                break
        else:
            sums = [rest]
            self._sums.setdefault(frozenset(rest.items()))
        outside = frozenset(f for f in powers.items() if not isinstance(f[0], Inverse))
        factors = [self.product(outside, Fraction(1), sizes, dtype)] if outside else []
        for part in sums:
            terms = [
                self.product(m, c, sizes, dtype)
                for m, c in sorted(part.items(), key=lambda t: told_powers(t[0]))
            ]
            factors.append(self.folded("add", terms, sizes))
        whole = self._scaled(self.folded("multiply", factors, sizes), content)
        return self._under(whole, frozenset(powers.items()) - outside, sizes, dtype)

    def product(self, m: Powers, c: Fraction, sizes: Sequence[int], dtype: str) -> tuple[str, Places]:
        """A monomial, along the dimensions that it has."""
        factors = []
        under = frozenset(f for f in m if isinstance(f[0], Inverse))
        for atom, k in sorted(m - under, key=lambda f: told(f[0])):
            if isinstance(atom, Exponential):
                inner, have = self.product(atom.of, k, sizes, dtype)
                shape = self.types[inner].shape
                factors.append((self.op("exponential", (inner,), shape, dtype), have))
            elif k.denominator != 1 or k < 0:
                raise Unfollowable("a power that is no product")
            else:
                factors += [self._atom(atom, sizes, dtype)] * int(k)
        if not factors:
            return self._under(self._number(c, dtype), under, sizes, dtype)
        return self._under(self._scaled(self.folded("multiply", factors, sizes), c), under, sizes, dtype)

    def _under(
        self, part: tuple[str, Places], m: Powers, sizes: Sequence[int], dtype: str
    ) -> tuple[str, Places]:
        """A tensor divided by what a product of inverses divides by."""
        inverses = sorted(m, key=lambda f: told(f[0]))
        under = [
            self._polynomial(dict(a.of), sizes, dtype)
            for a, k in inverses
            if isinstance(a, Inverse)
            for _ in range(int(k))
        ]
        return self.folded("divide", [part, *under], sizes)

    def _scaled(self, part: tuple[str, Places], c: Fraction) -> tuple[str, Places]:
        name, have = part
        kind = self.types[name]
        if c == 1:
            return part
        by = self.op("constant", (), kind.shape, kind.dtype, value=format_rational(c))
        return self.op("multiply", (name, by), kind.shape, kind.dtype), have

    def _atom(self, atom: Atom, sizes: Sequence[int], dtype: str) -> tuple[str, Places]:
        if isinstance(atom, Letter):
            return atom.name, atom.at
        assert isinstance(atom, Logarithm)
        inner, have = self._polynomial(dict(atom.of), sizes, dtype)
        return self.op("log", (inner,), self.types[inner].shape, dtype), have

    def _number(self, c: Fraction, dtype: str) -> tuple[str, Places]:
        return self.op("constant", (), (), dtype, value=format_rational(c)), ()

    def reduced(
        self, part: tuple[str, Places], over: Sequence[int], sizes: Sequence[int]
    ) -> tuple[str, Places]:
        """The sum of a tensor over some dimensions."""
        name, have = part
        if not over:
            return part
        left = tuple(p for p in have if p not in over)
        dims = tuple(sorted(have.index(p) for p in over))
        dtype = self.types[name].dtype
        return self.op("reduce", (name,), [sizes[p] for p in left], dtype, dims=dims, kind="add"), left

    def folded(
        self, name: str, parts: Sequence[tuple[str, Places]], sizes: Sequence[int]
    ) -> tuple[str, Places]:
        """Parts combined one after the other, each along the dimensions that are needed by then."""
        total, have = parts[0]
        for part, own in parts[1:]:
            want = tuple(sorted({*have, *own}))
            ins = self.placed(total, have, want, sizes), self.placed(part, own, want, sizes)
            kind = self.types[ins[0]]
            total, have = self.op(name, ins, kind.shape, kind.dtype), want
        return total, have


def fractions(
    above: Polynomial, below: Mapping[Factor, int]
) -> list[tuple[Polynomial, Mapping[Factor, int]]]:
    """A quotient as a sum of fractions, where that has fewer terms, or smaller ones."""
    for f, k in sorted(below.items(), key=lambda f: told(Inverse(f[0]))):
        found, rest = divided(above, dict(f))
        if found and rest and len(found) + len(rest) - (len(f) == 1) < len(above):
            less = {g: n for g, n in {**below, f: k - 1}.items() if n}
            return [*fractions(found, less), *fractions(rest, below)]
    return [(above, below)]


def groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[Places, Places]]:
    """Dimensions that a reshape takes to others with as many elements, those of size 1 apart."""
    left = [d for d, n in enumerate(before) if n > 1]
    right = [d for d, n in enumerate(after) if n > 1]
    out = []
    while left:
        own, new = [left.pop(0)], [right.pop(0)]
        while (x := math.prod(before[d] for d in own)) != (y := math.prod(after[d] for d in new)):
            if x < y:
                own.append(left.pop(0))
            else:
                new.append(right.pop(0))
        out.append((tuple(own), tuple(new)))
    return out


def _key(op: Op) -> object:
    return op.name, op.ins, op.type, tuple(sorted((k, str(v)) for k, v in op.attrs.items()))
