"""Polynomials over elements of tensors: what an op made of sums and products computes.

An op made of ``add subtract multiply``, scalings and quotients is written as a polynomial over elements of
tensors that are none of these, and over reciprocals of elements.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Reduced, Ref, split_ref

from ..cells import Cut, Digits, Unfollowable
from .knowledge import Knowledge
from .ledger import Unrelated

RING = frozenset(("add", "subtract", "multiply", "divide"))
MAX_MONOMIALS = 24
#: Tensors opened on the way to one polynomial, and specification ops compared with it.
MAX_OPENED = 48
#: Summands of a reduction that is taken apart, such as the norms of all parameters in one tensor.
MAX_SUMMANDS = 16


@dataclass(frozen=True)
class Inverse:
    """The reciprocal of a tensor's elements."""

    ref: Ref


@dataclass(frozen=True)
class Summand:
    """What one rank adds to the elements of a tensor, which are the sum over the ranks along ``axes``."""

    ref: Ref
    axes: tuple[str, ...]


Leaf = tuple[Ref | Inverse | Summand, tuple[Affine, ...]]
Monomial = tuple[Leaf, ...]
Polynomial = dict[Monomial, Fraction]
K = TypeVar("K")


@dataclass
class Trail:
    """What was opened and used on the way to a polynomial; ``partial`` are reduced tensors of its summands,
    ``ranges`` those of ranks that were summed over.
    """

    opened: set[Ref] = field(default_factory=set)
    instances: list[tuple[int, tuple[Affine, ...], str]] = field(default_factory=list)
    uses: list[tuple[Ref, tuple[Affine, ...]]] = field(default_factory=list)
    partial: set[Reduced] = field(default_factory=set)
    ranges: dict[str, Range] = field(default_factory=dict)


@dataclass(frozen=True)
class Opening:
    """On which box an element is opened, what is noted on the way, and which tensors are leaves."""

    ranges: Mapping[str, Range]
    trail: Trail
    leaf: Callable[[Ref], bool]
    #: Whether an element without a relation is a leaf too, which has to cancel.
    unrelated: bool = False


class Alien(Exception):
    """A specification op made of a tensor that the plan op does not read: so are all ops made of it."""


class TooLarge(Exception):
    """A polynomial over the limit; its tensor is then a leaf."""


class Polynomials:
    """Polynomials of specification and plan elements."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model

    def opens(self, ref: Ref) -> bool:
        """A specification tensor that is a sum or a product."""
        if (
            not isinstance(ref, str)
            or not ref.startswith("s:")
            or ref in self.k.by_lhs
            or not self.k.is_atom(ref)
        ):
            return False
        op = self.model.op(ref)
        return op is not None and op.type.sort == "Real" and self.adds(ref)

    def adds(self, ref: str) -> bool:
        """A sum or product, or a sum over a few positions of a tensor put together from others."""
        op = self.model.op(ref)
        if op is None or op.name != "reduce":
            return op is not None and op.name in RING
        if op.type.sort != "Real" or op.text("kind") != "add":
            return False
        operand = self.model.operands(ref)[0]
        shape = self.model.tensors.type(operand).shape
        return math.prod(shape[d] for d in op.ints("dims")) <= MAX_SUMMANDS and self.k.moves(operand)

    def of_plan(
        self,
        ref: str,
        at: Sequence[Affine],
        ranges: Mapping[str, Range],
        trail: Trail,
        *,
        deep: bool,
        unrelated: bool = False,
    ) -> Polynomial:
        """The polynomial of a plan op over specification tensors; ``deep`` opens sums and products among
        these too. What is ``unrelated`` to them may be added where it is taken away again.
        """
        trail.uses.append((ref, tuple(at)))
        trail.opened.add(ref)
        leaf = (lambda r: not self.opens(r)) if deep else (lambda _: True)
        poly = self._operands(ref, at, Opening(ranges, trail, leaf, unrelated))
        left = {x.ref if isinstance(x, Inverse) else x for m in poly for x, _ in m} if unrelated else ()
        for own in left:
            if isinstance(own, str) and not own.startswith("s:"):
                raise Unrelated(own)
        return poly

    def over_ranks(self, poly: Polynomial, partial: Collection[Reduced]) -> Polynomial:
        """The sum of a polynomial over the ranks that hold its summands."""
        if not partial:
            return poly
        axes = next(iter(partial)).axes
        pending = {leaf.axes for m in poly for leaf, _ in m if isinstance(leaf, Summand)}
        if any(r.axes != axes for r in partial) or pending - {axes}:
            raise Unfollowable("summands over different axes")
        return self._summed(poly, axes)

    def _summed(self, poly: Polynomial, axes: Sequence[str]) -> Polynomial:
        """The sum over the ranks along some axes.

        Ranks agree on what is no summand, so a monomial without one counts as often as there are ranks.
        """
        count = math.prod(self.model.plan.mesh.axes[a] for a in axes)
        parts: list[tuple[Monomial, Fraction]] = []
        for monomial, coef in poly.items():
            summands = [leaf for leaf, _ in monomial if isinstance(leaf, Summand)]
            symbols = {s for leaf, at in monomial if leaf not in summands for f in at for s in f.symbols}
            if len(summands) > 1 or any(re.split("[~#]", s)[0].rpartition(".")[2] in axes for s in symbols):
                raise Unfollowable("a product that depends on the rank")
            if any(set(axes) - set(leaf.axes) for leaf in summands):
                raise Unfollowable("summands over other axes")
            whole = _sorted((_after(leaf, axes), at) for leaf, at in monomial)
            parts.append((whole, coef * (1 if summands else count)))
        return combined(parts)

    def of_specification(
        self,
        ref: str,
        at: Sequence[Affine],
        ranges: Mapping[str, Range],
        trail: Trail,
        leaves: Collection[object],
    ) -> Polynomial:
        """The polynomial of a specification op, opened down to ``leaves``; :class:`Alien` if it has more."""

        def leaf(r: Ref) -> bool:
            if r not in leaves and not self.opens(r):
                raise Alien(r)
            return r in leaves

        trail.uses.append((ref, tuple(at)))
        trail.opened.add(ref)
        return self._operands(ref, at, Opening(ranges, trail, leaf))

    def _element(self, ref: Ref, at: Sequence[Affine], way: Opening) -> Polynomial:
        at = tuple(at)
        value = self.model.literal(ref)
        if isinstance(value, Fraction):
            return {(): value} if value else {}
        if value is not None:
            raise Unfollowable(f"{ref} is not a rational literal")
        way.trail.uses.append((ref, at))
        if isinstance(ref, str) and ref.startswith("s:") and self.k.is_atom(ref) and ref not in self.k.by_lhs:
            return self._atom(ref, at, way)
        try:
            reading = self.k.read(ref, at, way.ranges)
        except Unrelated:
            return self._unrelated(ref, at, way)
        if reading.fact is not None:
            way.trail.instances.append((reading.fact, reading.values, "lhs"))
            way.trail.uses.append((reading.target, reading.at))
        if reading.target == ref and isinstance(ref, str):  # it repeats itself
            return self._atom(ref, reading.at, way)
        inner = self._element(reading.target, reading.at, way)
        return {m: reading.coef * c for m, c in inner.items()}

    def _atom(self, ref: str, at: tuple[Affine, ...], way: Opening) -> Polynomial:
        if way.leaf(ref):
            return {((ref, at),): Fraction(1)}
        way.trail.opened.add(ref)
        return self._operands(ref, at, way)

    def _unrelated(self, ref: Ref, at: tuple[Affine, ...], way: Opening) -> Polynomial:
        if not isinstance(ref, str) or ref.startswith("s:"):
            raise Unrelated(ref)
        if self.adds(ref) and not self.k.moves(ref) and ref not in self.k.partials:
            way.trail.opened.add(ref)
            return self._operands(ref, at, way)
        op = self.model.op(ref)
        if op is not None and op.name == "all_reduce" and op.text("kind") == "add":
            return self._over_group(ref, at, way)
        links = self.k.links(ref)
        if links is not None:
            link = self.k.through(links, at, way.ranges)
            if link is None or link.fact is None:
                raise Unrelated(ref)
            way.trail.instances.append((link.fact, link.values, "lhs"))
            way.trail.uses.append((link.target, link.at))  # a constant is an element of the stage too
            inner = self._element(link.target, link.at, way)
            return {m: link.coef * c for m, c in inner.items()}
        axes = list(self.model.plan.mesh.axes)
        for reduced in self.k.partials.get(ref, []):
            if reduced.kind == "add":
                rest = tuple(f for i, f in enumerate(at) if i >= len(axes) or axes[i] not in reduced.axes)
                reading = self.k.summed(reduced, rest, way.ranges)
                assert reading.fact is not None
                way.trail.partial.add(reduced)
                way.trail.uses += [(reduced, rest), (reading.target, reading.at)]
                way.trail.instances.append((reading.fact, reading.values, "rhs"))
                return {((Summand(reading.target, reduced.axes), reading.at),): reading.coef}
        if way.unrelated:
            return {((ref, at),): Fraction(1)}
        raise Unrelated(ref)

    def _over_group(self, ref: str, at: tuple[Affine, ...], way: Opening) -> Polynomial:
        """The sum over a group of ranks of what all of its members compute alike, summands included."""
        reduced, axes = self.model.reduced(ref, "add"), list(self.model.plan.mesh.axes)
        inner = Trail()
        polys: list[Polynomial] = []
        try:
            for member in reduced.of:
                owner = split_ref(member)[0]
                moving = {a: f"{owner}.{a}" for a in reduced.axes}
                inner.ranges |= {s: self.model.plan.by_class[owner].box[a] for a, s in moving.items()}
                here = [
                    Affine.symbol(moving[axes[i]]) if i < len(axes) and axes[i] in moving else f
                    for i, f in enumerate(at)
                ]
                inside = replace(way, ranges={**way.ranges, **inner.ranges}, trail=inner)
                polys.append(self._element(member, here, inside))
        except (Cut, Digits) as split:
            if split.symbol in way.ranges:
                raise
            raise Unfollowable(f"{ref}: ranks differ") from None
        if any(p != polys[0] for p in polys):
            raise Unfollowable(f"{ref}: classes differ")
        poly = self._summed(polys[0], reduced.axes)
        rest = tuple(f for i, f in enumerate(at) if i >= len(axes) or axes[i] not in reduced.axes)
        way.trail.uses += [(reduced, rest), *inner.uses]
        way.trail.instances += inner.instances
        way.trail.opened |= inner.opened
        way.trail.opened.update((ref, reduced))
        way.trail.ranges |= inner.ranges
        if any(isinstance(x, Summand) for m in poly for x, _ in m):
            way.trail.partial |= inner.partial
        else:
            way.trail.opened |= inner.partial
        return poly

    def _operands(self, ref: str, at: Sequence[Affine], way: Opening) -> Polynomial:
        if len(way.trail.opened) > MAX_OPENED:
            raise TooLarge(ref)
        op = self.model.ops[ref]
        if op.name == "reduce":
            return self._summands(ref, at, way)
        first, second = self.model.operands(ref)
        left = self._element(first, at, way)
        if op.name == "divide":
            right = _inverse(self._element(second, at, replace(way, leaf=lambda _: True)))
        else:
            right = self._element(second, at, way)
        if op.name in ("multiply", "divide"):
            out = combined((_sorted((*m, *n)), c * d) for m, c in left.items() for n, d in right.items())
        else:
            sign = -1 if op.name == "subtract" else 1
            out = combined((*left.items(), *((m, sign * c) for m, c in right.items())))
        return _small(ref, out)

    def _summands(self, ref: str, at: Sequence[Affine], way: Opening) -> Polynomial:
        """The sum over all positions of the reduced dimensions, one by one."""
        op, operand = self.model.ops[ref], self.model.operands(ref)[0]
        shape, dims = self.model.tensors.type(operand).shape, op.ints("dims")
        mesh = len(self.model.tensors.mesh_axes(ref))
        parts: list[tuple[Monomial, Fraction]] = []
        for position in itertools.product(*(range(shape[d]) for d in dims)):
            index = list(at)
            for d, i in zip(dims, position, strict=True):
                index.insert(mesh + d, Affine(i))
            parts += self._element(operand, index, way).items()
        return _small(ref, combined(parts))


def _sorted(leaves: Iterable[Leaf]) -> Monomial:
    return tuple(sorted(leaves, key=str))


def combined(parts: Iterable[tuple[K, Fraction]]) -> dict[K, Fraction]:
    """The sum of things with coefficients, in the order of their first occurrence; what cancels goes."""
    out: dict[K, Fraction] = {}
    for thing, coef in parts:
        out[thing] = out.get(thing, Fraction(0)) + coef
    return {t: c for t, c in out.items() if c}


def _small(ref: Ref, poly: Polynomial) -> Polynomial:
    if len(poly) > MAX_MONOMIALS:
        raise TooLarge(ref)
    return poly


def _after(leaf: Ref | Inverse | Summand, axes: Sequence[str]) -> Ref | Inverse | Summand:
    """A leaf of a polynomial after its sum over the ranks along some axes."""
    if not isinstance(leaf, Summand):
        return leaf
    left = tuple(a for a in leaf.axes if a not in axes)
    return Summand(leaf.ref, left) if left else leaf.ref


def _inverse(poly: Polynomial) -> Polynomial:
    """The reciprocal of a number or of an element; of nothing else, as ``recip`` distributes over no
    factor.
    """
    if len(poly) == 1:
        ((monomial, coef),) = poly.items()
        if not monomial:
            return {(): 1 / coef}
        ref, at = monomial[0]
        if len(monomial) == 1 and coef == 1 and not isinstance(ref, Inverse | Summand):
            return {((Inverse(ref), at),): Fraction(1)}
    raise Unfollowable("a divisor that is no single element")
