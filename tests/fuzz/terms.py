"""Random element expressions: the language of docs/theory.md, its rewritings, its mutations and its meaning.

A term is a tuple; index variables are names whose first letter is their kind:

    i j r k u v   an index class            p   the product of the classes r and k (a reshape, a shard)
                                            s   pieces u and v, one after the other (an uneven split)

    ("L", letter, (entry, ...))     element of an input; an entry: a variable, ("p", r, k) or ("s", piece, u)
    ("#", q, e, class, c)           the literal q * (n / c)^e, n the size of the class
    ("+", x, y)  ("*", x, y)  ("/", x, y)  ("F", function, x)  ("C", x, y)  ("?", p, x, y)
    ("S", variable, x)  ("M", variable, x)  ("m", x, y)          sum; maximum over a variable, of two terms
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Term = tuple[Any, ...]
Sizes = Mapping[str, int]
Array = npt.NDArray[np.int64]

#: Inputs and the kinds of their dimensions.
LETTERS = {"a": "i", "b": "i", "c": "ii", "d": "ij", "e": "p", "f": "pi", "g": "s", "h": ""}
FUNCTIONS = ("exponential", "tanh", "rsqrt")
PARTS = {"p": (("r", "k"),), "s": (("u",), ("v",))}
CLASSES = "ijrkuv"
PRIME = (1 << 31) - 1


def number(q: int | Fraction, e: int = 0, cls: str = "i", c: int = 1) -> Term:
    return ("#", Fraction(q), e, cls, c)


def value_of(literal: Term, sizes: Sizes) -> Fraction:
    _, q, e, cls, c = literal
    return Fraction(q * Fraction(sizes[cls], c) ** e)


def size_of(kind: str, sizes: Sizes) -> int:
    if kind == "p":
        return sizes["r"] * sizes["k"]
    return sizes["u"] + sizes["v"] if kind == "s" else sizes[kind]


def variables(entry: Any) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry[1:]) if entry[0] == "p" else (entry[2],)


def children(t: Term) -> tuple[Term, ...]:
    match t[0]:
        case "L" | "#":
            return ()
        case "S" | "M" | "F":
            return (t[2],)
        case _:
            return t[1:]


def rebuilt(t: Term, parts: tuple[Term, ...]) -> Term:
    match t[0]:
        case "L" | "#":
            return t
        case "S" | "M" | "F":
            return (t[0], t[1], *parts)
        case _:
            return (t[0], *parts)


@lru_cache(maxsize=1 << 16)
def free(t: Term) -> frozenset[str]:
    if t[0] == "L":
        return frozenset(v for entry in t[2] for v in variables(entry))
    found = frozenset[str]().union(*(free(x) for x in children(t)))
    return found - {t[1]} if t[0] in ("S", "M") else found


def substitute(t: Term, old: str, new: Any) -> Term:
    """`t` with the free variable `old` replaced by an entry."""
    if old not in free(t):
        return t
    if t[0] == "L":
        return ("L", t[1], tuple(new if e == old else _inside(e, old, new) for e in t[2]))
    return rebuilt(t, tuple(substitute(x, old, new) for x in children(t)))


def _inside(entry: Any, old: str, new: Any) -> Any:
    return entry if isinstance(entry, str) else tuple(new if e == old else e for e in entry)


def size(t: Term) -> int:
    return 1 + sum(map(size, children(t)))


class Random:
    """Random terms; every bound variable of one pair has its own name."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = itertools.count()

    def variable(self, kind: str) -> str:
        return f"{kind}{next(self.count)}"

    def letter(self, scope: tuple[str, ...]) -> Term:
        """An element of an input whose dimensions can be indexed from the scope; else a literal."""
        options = [
            (name, kinds)
            for name, kinds in LETTERS.items()
            if all(any(v[0] == k for v in scope) for k in kinds)
        ]
        busy = [o for o in options if o[1]]
        name, kinds = self.rng.choice(busy if busy and self.rng.random() < 0.9 else options)
        return ("L", name, tuple(self.rng.choice([v for v in scope if v[0] == k]) for k in kinds))

    def literal(self) -> Term:
        q = Fraction(self.rng.choice((1, 1, 2, 3, -1, -2)), self.rng.choice((1, 1, 1, 2)))
        e = self.rng.choice((0, 0, 1, -1))
        return number(q, e, self.rng.choice("ijr"), self.rng.choice((1, 1, 2, 3)) if e else 1)

    def term(self, scope: tuple[str, ...], depth: int) -> Term:
        rng = self.rng
        if depth == 0 or rng.random() < 0.1:
            return self.letter(scope) if rng.random() < 0.85 else self.literal()
        match rng.choice("+**SSSSMFFm/?"):
            case ("+" | "*" | "m") as op:
                return (op, self.term(scope, depth - 1), self.term(scope, depth - 1))
            case ("S" | "M") as op:
                v = self.variable(rng.choice("iiiijps"))
                return (op, v, self.term((*scope, v), depth - 1))
            case "F":
                return ("F", rng.choice(FUNCTIONS), self.term(scope, depth - 1))
            case "/":
                return ("/", self.term(scope, depth - 1), self.term(scope, min(depth - 1, 1)))
            case _:
                p = ("C", self.letter(scope), self.letter(scope))
                return ("?", p, self.term(scope, depth - 1), self.letter(scope))

    # --- equal by construction -----------------------------------------------------------------------------

    def fresh(self, t: Term) -> Term:
        """`t` with new names for its bound variables."""
        t = rebuilt(t, tuple(self.fresh(x) for x in children(t)))
        if t[0] in ("S", "M"):
            v = self.variable(t[1][0])
            return (t[0], v, substitute(t[2], t[1], v))
        return t

    def rewritten(self, t: Term, steps: int) -> Term:
        for _ in range(steps):
            t = self.somewhere(t, self._step)
        return t

    def somewhere(self, t: Term, change: Callable[[Term], Term]) -> Term:
        """`t` with one random node changed."""
        parts = children(t)
        at = self.rng.randrange(size(t))
        if at == 0:
            return change(t)
        at -= 1
        for i, x in enumerate(parts):
            if at < size(x):
                return rebuilt(t, (*parts[:i], self.somewhere(x, change), *parts[i + 1 :]))
            at -= size(x)
        raise AssertionError("positions cover the term")

    def _step(self, t: Term) -> Term:
        """One true identity, applied at the root where one fits."""
        rng, parts = self.rng, children(t)
        if t[0] == "C":
            return t
        options: list[Callable[[], Term]] = []
        if t[0] in ("+", "*", "m"):
            _, x, y = t
            options.append(lambda: (t[0], y, x))
            if x[0] == t[0]:
                options.append(lambda: (t[0], x[1], (t[0], x[2], y)))
            if t[0] == "*" and y[0] == "+":
                options += [lambda: ("+", ("*", x, y[1]), ("*", self.fresh(x), y[2]))] * 3
            if t[0] == "*" and y[0] == "S":
                options += [lambda: ("S", y[1], ("*", x, y[2]))] * 3
            if t[0] == "+" and x[0] == y[0] == "S" and x[1][0] == y[1][0]:
                options += [lambda: ("S", x[1], ("+", x[2], substitute(y[2], y[1], x[1])))] * 3
        if t[0] in ("S", "M"):
            op, v, x = t
            if v[0] in PARTS:
                options += [lambda: self._parts(op, v, x)] * 3
            if x[0] == op:
                options += [lambda: (op, x[1], (op, v, x[2]))] * 2
            if op == "S" and x[0] == "+":
                options += [lambda: ("+", ("S", v, x[1]), self.fresh(("S", v, x[2])))] * 2
            if op == "S" and x[0] == "*" and v not in free(x[1]):
                options += [lambda: ("*", x[1], ("S", v, x[2]))] * 3
            if op == "S" and v not in free(x) and v[0] not in "ps":
                options += [lambda: ("*", number(1, 1, v[0]), x)] * 3
            if op == "M" and v not in free(x):
                options.append(lambda: x)
        if t[0] == "?":
            options.append(lambda: ("+", t[3], ("*", t[1], ("+", t[2], ("*", number(-1), t[3])))))
        if t[0] != "#" and size(t) < 12:
            c = rng.choice("ijr")
            options.append(lambda: ("*", number(1, -1, c), ("S", self.variable(c), t)))
            options.append(lambda: ("m", t, self.fresh(t)))
            options.append(lambda: ("M", self.variable(c), t))
            options.append(lambda: ("+", ("*", number(2), t), ("*", number(-1), self.fresh(t))))
        return rng.choice(options)() if options else rebuilt(t, parts)

    def _parts(self, op: str, v: str, x: Term) -> Term:
        if v[0] == "p":
            r, k = self.variable("r"), self.variable("k")
            return (op, r, (op, k, substitute(x, v, ("p", r, k))))
        one, two = self.variable("u"), self.variable("v")
        return (
            "+" if op == "S" else "m",
            (op, one, substitute(x, v, ("s", 0, one))),
            self.fresh((op, two, substitute(x, v, ("s", 1, two)))),
        )

    # --- mistakes ------------------------------------------------------------------------------------------

    def mutated(self, t: Term) -> Term:
        return self.somewhere(t, self._mistake)

    def _mistake(self, t: Term) -> Term:
        rng = self.rng
        match t[0]:
            case "L" if t[2]:
                at = rng.randrange(len(t[2]))
                same = [v for e in t[2] for v in variables(e) if v[0] == str(t[2][at])[0]]
                name = rng.choice([n for n, kinds in LETTERS.items() if kinds == LETTERS[t[1]]])
                return ("L", name, (*t[2][:at], rng.choice([t[2][at], *same]), *t[2][at + 1 :]))
            case "#":
                return self.literal()
            case "+":
                return rng.choice([("*", *t[1:]), ("m", *t[1:]), t[1], ("+", t[1], ("*", number(2), t[2]))])
            case "*":
                return rng.choice([("+", *t[1:]), t[1], t[2], ("*", t[2], ("*", self.fresh(t[1]), t[1]))])
            case "m":
                return rng.choice([("+", *t[1:]), t[1]])
            case "S":
                mean = ("*", number(1, -1, t[1][0]), t) if t[1][0] not in "ps" else t
                inside = ("F", t[2][1], ("S", t[1], t[2][2])) if t[2][0] == "F" else t
                return rng.choice([("M", *t[1:]), mean, inside, ("*", number(2), t)])
            case "M":
                member = [substitute(t[2], t[1], v) for v in sorted(free(t)) if v[0] == t[1][0]]
                return rng.choice([*member, ("S", *t[1:]), ("+", t, number(1))])
            case "F":
                x = t[2]
                outside = (x[0], x[1], ("F", t[1], x[2])) if x[0] in ("S", "M") else ("*", number(2), t)
                return rng.choice([("F", rng.choice(FUNCTIONS), x), outside, x])
            case "/":
                return rng.choice([("*", *t[1:]), ("/", t[2], t[1])])
            case "?":
                return (*t[:2], t[3], t[2])
            case "C":
                return ("C", t[2], t[1])
            case _:
                return ("*", number(2), t)


# --- meaning ------------------------------------------------------------------------------------------------


def mixed(x: Array, key: int) -> Array:
    """A keyed hash into the prime field."""
    with np.errstate(over="ignore"):
        y = x.astype(np.uint64) + np.uint64(key * 0x9E3779B97F4A7C15 % (1 << 64))
        y = (y ^ (y >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        y = y ^ (y >> np.uint64(31))
    return (y % np.uint64(PRIME)).astype(np.int64)


class Meaning:
    """Exact values at true sizes in a prime field: free functions are keyed hashes, the maximum is taken in
    a hashed order (a semilattice), `recip` is the inverse. An array has one axis per free variable."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.sizes, self.key = sizes, seed * 64
        self.inputs: dict[str, Array] = {
            name: rng.integers(0, PRIME, [size_of(k, sizes) for k in kinds], dtype=np.int64)
            for name, kinds in LETTERS.items()
        }
        self.known: dict[Term, Array] = {}

    def of(self, t: Term) -> Array:
        if t not in self.known:
            self.known[t] = self._of(t)
        return self.known[t]

    def spread(self, t: Term, names: list[str]) -> Array:
        """The value with one axis per name; missing ones have size 1."""
        value = self.of(t)
        own = sorted(free(t))
        return value.reshape([value.shape[own.index(v)] if v in own else 1 for v in names])

    def _of(self, t: Term) -> Array:
        names = sorted(free(t))
        match t[0]:
            case "L":
                at = {
                    v: np.arange(size_of(v[0], self.sizes)).reshape([-1 if v == w else 1 for w in names])
                    for v in names
                }
                value: Array = self.inputs[t[1]][tuple(self._position(e, at) for e in t[2])]
                return value.reshape([size_of(v[0], self.sizes) for v in names])
            case "#":
                q = value_of(t, self.sizes)
                return np.asarray(q.numerator * pow(q.denominator, -1, PRIME) % PRIME)
            case "+":
                return (self.spread(t[1], names) + self.spread(t[2], names)) % PRIME
            case "*":
                return self.spread(t[1], names) * self.spread(t[2], names) % PRIME
            case "/":
                return self.spread(t[1], names) * inverse(self.spread(t[2], names)) % PRIME
            case "F":
                return mixed(self.of(t[2]), self.key + 1 + FUNCTIONS.index(t[1]))
            case "C":
                x, y = (mixed(self.spread(s, names), self.key + 40 + i) for i, s in enumerate(t[1:]))
                return (x > y).astype(np.int64)
            case "?":
                p, x, y = (self.spread(s, names) for s in t[1:])
                return np.where(p == 1, x, y)
            case "m":
                x, y = np.broadcast_arrays(self.spread(t[1], names), self.spread(t[2], names))
                return np.where(mixed(x, self.key) >= mixed(y, self.key), x, y)
            case "S" | "M":
                names = sorted({*names, t[1]})
                axis, n = names.index(t[1]), size_of(t[1][0], self.sizes)
                value = self.spread(t[2], names)
                value = np.broadcast_to(value, (*value.shape[:axis], n, *value.shape[axis + 1 :]))
                if t[0] == "S":
                    return np.asarray(value.sum(axis) % PRIME)
                best = mixed(value, self.key).argmax(axis)
                return np.take_along_axis(value, np.expand_dims(best, axis), axis).squeeze(axis)
        raise AssertionError(t[0])

    def _position(self, entry: Any, at: Mapping[str, Array]) -> Array:
        if isinstance(entry, str):
            return at[entry]
        if entry[0] == "p":
            return at[entry[1]] * self.sizes["k"] + at[entry[2]]
        return at[entry[2]] + (self.sizes["u"] if entry[1] else 0)


def inverse(x: Array) -> Array:
    """The inverse in the prime field; of 0 it is 0."""
    result, power, e = np.ones_like(x), x % PRIME, PRIME - 2
    while e:
        if e & 1:
            result = result * power % PRIME
        power = power * power % PRIME
        e >>= 1
    return result


def differ(left: Term, right: Term, sizes: Sizes, seeds: tuple[int, ...] = (1, 2)) -> bool:
    """Is there an input, of those tried, on which the two terms have different values?"""
    names = sorted(free(left) | free(right))
    for seed in seeds:
        meaning = Meaning(sizes, seed)
        x, y = np.broadcast_arrays(meaning.spread(left, names), meaning.spread(right, names))
        if (x != y).any():
            return True
    return False
