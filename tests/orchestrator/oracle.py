"""Facts, evaluated: both sides of an equation between tensors, on the oracle's numbers."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np

from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from orchestrator.evaluating.interpreter import evaluate, evaluate_ranks, random_inputs, scatter_inputs

#: Symbol values tried per fact; facts with fewer are tried at all of them.
POINTS = 200


class Numbers:
    """Every value of the specification and of all ranks, at random inputs that satisfy the input relation."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        inputs = random_inputs(plan, rng)
        self.plan = plan
        self.spec = evaluate(plan.specification, inputs)
        self.ranks = evaluate_ranks(plan, scatter_inputs(plan, inputs, rng))

    def element(self, ref: Ref, index: tuple[int, ...]) -> float:
        """``ref[index]``, a full index. ``IndexError`` if a coordinate is out of range."""
        axes = list(self.plan.mesh.axes)
        if isinstance(ref, Reduced):
            return self._reduced(ref, index)
        owner, name = split_ref(ref)
        if ref.startswith("#"):
            return float(name == "true") if owner == "#b" else float(Fraction(name))
        if owner == "s":
            return _pick(self.spec[name], index)
        place = dict(zip(axes, index, strict=False))
        box = self.plan.by_class[owner].box
        if any(not lo <= place[a] < hi for a, (lo, hi) in box.items()):
            raise IndexError(f"{ref} has no rank {place}")
        return _pick(self.ranks[self.plan.mesh.rank(place)][name], index[len(axes) :])

    def _reduced(self, ref: Reduced, index: tuple[int, ...]) -> float:
        axes = list(self.plan.mesh.axes)
        values = []
        for member in ref.of:
            box = self.plan.by_class[split_ref(member)[0]].box
            for point in itertools.product(*(range(*box[a]) for a in ref.axes)):
                full = list(index)
                for a, at in zip(ref.axes, point, strict=True):
                    full.insert(axes.index(a), at)
                values.append(self.element(member, tuple(full)))
        match ref.kind:
            case "add":
                return math.fsum(values)
            case "max":
                return max(values)
            case _:
                return min(values)

    def failure(self, fact: Fact, seed: int = 0) -> str | None:
        """Where a fact does not hold, in words; ``None`` if it holds at every point that was tried."""
        spaces = [range(lo, hi) for _, lo, hi in fact.symbols]
        names = [name for name, _, _ in fact.symbols]
        if math.prod(map(len, spaces)) <= POINTS:
            points = list(itertools.product(*spaces))
        else:
            rng = random.Random(seed)
            points = [tuple(rng.choice(s) for s in spaces) for _ in range(POINTS)]
        for point in points:
            at = dict(zip(names, point, strict=True))
            left = self.element(fact.lhs, tuple(f.evaluate(at) for f in fact.lhs_index))
            right = float(fact.coef) * self.element(fact.rhs, tuple(f.evaluate(at) for f in fact.rhs_index))
            if not math.isclose(left, right, rel_tol=1e-7, abs_tol=1e-9):
                return f"{fact}\n  at {at}: {left} is not {right}"
        return None


def _pick(values: object, index: tuple[int, ...]) -> float:
    array = np.asarray(values)
    if len(index) != array.ndim or any(not 0 <= i < n for i, n in zip(index, array.shape, strict=True)):
        raise IndexError(f"{index} of {array.shape}")
    return float(array[index])
