"""S-expressions of obligations, evaluated on the oracle's numbers; and stages in which nothing is reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from certificates.proof.facts import Ref
from certificates.proof.stages import AlgebraStage, Elem, Tree
from smtlib_emit.model import Model
from smtlib_emit.sexp import Sexp, Symbol
from tests.orchestrator.oracle import Numbers

_FREE: dict[str, Callable[..., float]] = {
    "mul": lambda x, y: x * y,
    "recip": lambda x: 1 / x,
    "fexp": math.exp,
    "flog": math.log,
    "fsqrt": math.sqrt,
    "frsqrt": lambda x: 1 / math.sqrt(x),
    "fsin": math.sin,
    "fcos": math.cos,
    "ftanh": math.tanh,
    "flogistic": lambda x: 1 / (1 + math.exp(-x)),
    "ferf": math.erf,
    "fabs": abs,
    "fpow": pow,
    "max2": max,
    "min2": min,
    "cmp_eq": lambda x, y: float(x == y),
    "cmp_ne": lambda x, y: float(x != y),
    "cmp_lt": lambda x, y: float(x < y),
    "cmp_le": lambda x, y: float(x <= y),
    "cmp_gt": lambda x, y: float(x > y),
    "cmp_ge": lambda x, y: float(x >= y),
    "nonzero": lambda x: float(x != 0),
}
_CORE: dict[str, Callable[..., Any]] = {
    "+": lambda *xs: sum(xs),
    "-": lambda x, *ys: x - sum(ys) if ys else -x,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "not": lambda p: not p,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "to_real": float,
    "=": lambda x, y: math.isclose(x, y, rel_tol=1e-7, abs_tol=1e-9),
}


class Meaning:
    """Values of expressions: index symbols as given, tensors and elements from the oracle."""

    def __init__(
        self, numbers: Numbers, symbols: Mapping[str, int], stage: AlgebraStage | None = None
    ) -> None:
        self.numbers, self.symbols, self.stage = numbers, symbols, stage

    def of(self, e: Sexp) -> Any:
        if isinstance(e, Symbol):
            return self._leaf(e, ())
        if isinstance(e, str):
            return self._word(e)
        head, *rest = e
        if head == "and":
            return all(self.of(x) for x in rest)
        if head == "or":
            return any(self.of(x) for x in rest)
        if head == "=>":
            return not self.of(rest[0]) or self.of(rest[1])
        if head == "ite":
            return self.of(rest[1] if self.of(rest[0]) else rest[2])
        values = [self.of(x) for x in rest]
        if isinstance(head, Symbol):
            return self._leaf(head, tuple(values))
        return (_CORE.get(str(head)) or _FREE[str(head)])(*values)

    def _word(self, word: str) -> Any:
        constants = {"true": True, "false": False, "neg_inf": -math.inf, "pos_inf": math.inf}
        if word in constants:
            return constants[word]
        if word in self.symbols:
            return self.symbols[word]
        return float(word) if "." in word else int(word)

    def _leaf(self, symbol: Symbol, index: tuple[int, ...]) -> float:
        if isinstance(symbol.of, Elem):
            assert self.stage is not None
            return self.numbers.element(symbol.of.ref, positions(self.stage, symbol.of))
        return self.numbers.element(symbol.of, index)


def exact_stage(model: Model, goal: int, refs: list[Ref]) -> AlgebraStage:
    """Every coordinate is one piece of a class of its own size; all of its positions are representatives."""
    classes: dict[str, tuple[int, int]] = {}
    trees: dict[Ref, tuple[Tree, ...]] = {}
    for ref in refs:
        cut: list[Tree] = []
        for lo, hi in model.tensors.ranges(ref):
            name = f"n{hi - lo}"
            if hi - lo > 1:
                classes[name] = (hi - lo, hi - lo)
            cut.append(((lo, (name,), (1,)) if hi - lo > 1 else (lo, (), ()),))
        trees[ref] = tuple(cut)
    return AlgebraStage(goal, "", classes, trees, (), ())


def elem(model: Model, ref: Ref, index: tuple[int, ...]) -> Elem:
    """An element of an exact stage."""
    places = []
    for (lo, hi), at in zip(model.tensors.ranges(ref), index, strict=True):
        places.append((0, at - lo) if hi - lo > 1 else (0,))
    return Elem(ref, tuple(places))


def positions(stage: AlgebraStage, e: Elem) -> tuple[int, ...]:
    """Where an element of an exact stage stands."""
    out = []
    for tree, place in zip(stage.trees[e.ref], e.index, strict=True):
        offset, _, steps = tree[place[0]]
        out.append(offset + sum(s * rep for s, rep in zip(steps, place[1:], strict=True)))
    return tuple(out)
