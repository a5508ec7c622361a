"""Sums of products under names of their own: equal ones have one, however they are nested and grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .values import Atom, Exponential, Inverse, Letter, Powers, inside, told
from .writing import Writer

ONE = Fraction(1)
Places = tuple[int, ...]
Factor1 = tuple[Atom, Fraction]


@dataclass(frozen=True)
class Definition:
    """What a letter is a sum of: factors over its dimensions ``0, 1, …`` and summed ones behind them."""

    factors: Powers
    summed: Places
    sizes: Places


def places_of(atom: Atom) -> set[int]:
    """The dimensions that an atom lies along."""
    return {p for a in inside({frozenset({(atom, ONE)}): ONE}) if isinstance(a, Letter) for p in a.at}


class Sums:
    """The sums of one program that have names; ``defined`` says what a tensor of the program is a sum of, and
    ``plain`` whether no law is needed for a factor."""

    def __init__(
        self, writer: Writer, defined: Callable[[str], Definition | None], plain: Callable[[Atom], bool]
    ) -> None:
        self.writer, self._defined, self._plain = writer, defined, plain
        self._own: dict[str, Definition | None] = {}
        self._known: dict[object, tuple[str, Places]] = {}
        self._renamed: set[str] = set()

    def definition(self, name: str) -> Definition | None:
        """What a letter is a sum of, if it is one."""
        if name not in self._own:
            found = self._own[name] = self._defined(name)
            if found is not None:
                rank = len(self.writer.types[name].shape)
                bound, wide = set(found.summed), [*self.writer.types[name].shape, *found.sizes]
                key, numbers = _key(list(self._opened(found.factors, bound, wide)), bound)
                self._known.setdefault(key, (name, tuple(numbers[p] for p in range(rank))))
        return self._own[name]

    def own(self, name: str) -> bool:
        """Whether a letter is a sum that was named here."""
        return any(known == name for known, _ in self._known.values()) or name in self._renamed

    def renamed(self, name: str, other: str) -> Powers:
        """From now on a sum has another name, with the same dimensions; the factors of what is summed."""
        for key, (known, order) in self._known.items():
            if known == name:
                self._known[key] = other, order
        self._renamed.add(other)
        definition = self._own[other] = self._own[name]
        assert definition is not None
        return definition.factors

    def also(self, name: str, x: Letter) -> None:
        """A letter with as many dimensions is this sum too."""
        definition = self.definition(x.name)
        if definition is not None and len(x.at) == len(self.writer.types[name].shape):
            own = dict(enumerate(x.at)) | {p: p for p in definition.summed}
            self._own[name] = replace(definition, factors=placed(definition.factors, own))

    def named(self) -> Iterator[str]:
        """The letters that are sums, as far as it was asked."""
        yield from (name for name, definition in self._own.items() if definition is not None)

    def over(self, factors: Powers, summed: Places, sizes: Sequence[int], dtype: str) -> Letter:
        """The sum of a product over some dimensions, along which all of its factors lie."""
        bound, wide = set(summed), list(sizes)
        flat = sorted(self._opened(factors, bound, wide), key=lambda f: told(f[0]))
        key, numbers = _key(flat, bound)
        places = {n: p for p, n in numbers.items()}
        if key not in self._known:
            name, at = self._written(flat, bound, wide, dtype)
            self._known[key] = name, tuple(numbers[p] for p in at)
            order = [*at, *sorted(bound)]
            own = dict(zip(order, range(len(order)), strict=True))
            self._own[name] = Definition(
                placed(frozenset(flat), own),
                tuple(own[p] for p in sorted(bound)),
                tuple(wide[p] for p in sorted(bound)),
            )
        name, order_ = self._known[key]
        return Letter(name, tuple(places[n] for n in order_))

    def _written(
        self, flat: Sequence[Factor1], bound: set[int], sizes: Sequence[int], dtype: str
    ) -> tuple[str, Places]:
        """The sum as ops, and where the dimensions of the result lie. What needs no law is summed first, so
        that equal sums are made alike."""
        flat, bound = list(flat), set(bound)
        for p in sorted(bound):
            inner = [f for f in flat if p in places_of(f[0])]
            if len(inner) == len(flat) or not all(map(self._plain, (a for a, _ in inner))):
                continue
            outer = {q for f in flat if f not in inner for q in places_of(f[0])}
            over = {q for f in inner for q in places_of(f[0])} & bound - outer
            made = self.over(frozenset(inner), tuple(sorted(over)), sizes, dtype)
            flat = [*(f for f in flat if f not in inner), (made, ONE)]
            bound -= over
            return self._written(flat, bound, sizes, dtype)
        parts = [self.writer.product(g, ONE, sizes, dtype) for g in self._sides(flat, bound)]
        shared = set.intersection(*(set(have) for _, have in parts)) & bound
        parts = [
            self.writer.reduced(part, [p for p in part[1] if p in bound - shared], sizes) for part in parts
        ]
        if len(parts) == 1:
            return self.writer.reduced(parts[0], sorted(shared), sizes)
        (left, have), (right, own) = parts
        batch = [p for p in have if p in own and p not in shared]
        free = [[p for p in at if p not in shared and p not in batch] for at in (have, own)]
        at = (*batch, *free[0], *free[1])
        contract = sorted(shared)
        made_ = self.writer.op(
            "dot_general", (left, right), [sizes[p] for p in at], dtype,
            lhs_batch=tuple(map(have.index, batch)), rhs_batch=tuple(map(own.index, batch)),
            lhs_contract=tuple(map(have.index, contract)), rhs_contract=tuple(map(own.index, contract)),
        )  # fmt: skip
        return made_, at

    def _sides(self, flat: Sequence[Factor1], bound: set[int]) -> list[Powers]:
        """A product as one of two: a factor that laws are about, with what lies along its dimensions."""
        apart = [a for a, _ in flat if not self._plain(a)]
        first = next((a for a in apart if not isinstance(a, Inverse)), flat[0][0])
        own = places_of(first) - bound
        left = frozenset(f for f in flat if places_of(f[0]) - bound <= own)
        right = frozenset(flat) - left
        return [left, right] if right else [left]

    # --- which sums are equal ------------------------------------------------------------------------------

    def _opened(self, factors: Powers, bound: set[int], sizes: list[int]) -> Iterator[Factor1]:
        """Factors, with what they are sums of in their place: over further dimensions."""
        for atom, k in sorted(factors, key=lambda f: told(f[0])):
            definition = self.definition(atom.name) if isinstance(atom, Letter) and k == 1 else None
            if definition is None:
                yield atom, k
                continue
            assert isinstance(atom, Letter)
            own = dict(enumerate(atom.at))
            for p, size in zip(definition.summed, definition.sizes, strict=True):
                own[p] = len(sizes)
                bound.add(len(sizes))
                sizes.append(size)
            yield from self._opened(placed(definition.factors, own), bound, sizes)


def _key(flat: Sequence[Factor1], bound: set[int]) -> tuple[object, Mapping[int, int]]:
    """A name that equal sums of products share, and the number that each dimension has in it."""
    hidden = sorted(flat, key=lambda f: told(f[0], lambda p: -1 if p in bound else -2))
    numbers: dict[int, int] = {}
    for atom, _ in hidden:
        for p in _in_order(atom):
            numbers.setdefault(p, len(numbers))
    factors = tuple((told(a, numbers.__getitem__), k) for a, k in hidden)
    return (factors, tuple(sorted(numbers[p] for p in bound))), numbers


def placed(factors: Powers, own: Mapping[int, int]) -> Powers:
    """Factors along other dimensions."""

    def moved(atom: Atom) -> Atom:
        if isinstance(atom, Letter):
            return Letter(atom.name, tuple(own[p] for p in atom.at), atom.truth)
        if isinstance(atom, Exponential):
            return Exponential(frozenset((moved(a), k) for a, k in atom.of))
        return type(atom)(frozenset((frozenset((moved(a), k) for a, k in m), c) for m, c in atom.of))

    return frozenset((moved(a), k) for a, k in factors)


def _in_order(atom: Atom) -> Iterator[int]:
    """The dimensions of an atom in an order that its names give."""
    if isinstance(atom, Letter):
        yield from atom.at
        return
    inner = (
        [a for a, _ in atom.of] if isinstance(atom, Exponential) else [a for m, _ in atom.of for a, _ in m]
    )
    for a in sorted(inner, key=lambda a: a.name if isinstance(a, Letter) else ""):
        yield from _in_order(a)
