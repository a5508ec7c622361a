"""Values of a plan with only some tensors opened: what a layout stage sees, as numbers.

Opened tensors, data movement, integers and booleans are computed. Every other tensor of the specification has
free random values; every other tensor of a rank has the values that its relation to the specification gives.
So a fact can be tried where its tensors, computed from the inputs, vary in more blocks than can be held.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.ops import CALL
from certificates.plan.program import Op
from certificates.plan.types import TensorType
from certificates.proof.facts import Fact, Reduced, Ref, split_ref

from ..errors import EvaluationError
from ..evaluating.forms import Form
from ..evaluating.network import Expansion, Node
from ..relating.knowledge import Knowledge
from .scenarios import Scenario

_CUTS = 4


class Opened(Expansion):
    """An expansion that takes tensors outside ``expand`` as given."""

    #: Whether a tensor that nothing is known of has some value.
    _junk = False

    def __init__(self, knowledge: Knowledge, scenario: Scenario, expand: frozenset[Ref], seed: int) -> None:
        super().__init__(knowledge.model.plan, scenario.network, self._free, self._related)
        self._knowledge, self._scenario, self._expand, self._seed = knowledge, scenario, expand, seed
        self._types = knowledge.model.tensors.types

    def op(self, rank: int, name: str) -> Op | None:
        """The op of an opened tensor; ``None`` for a given one."""
        ref = f"{self.class_of(rank)}:{name}"
        op = self._knowledge.model.ops.get(ref)
        if op is not None and op.name == CALL:
            return None
        if op is None or op.type.sort != "Real" or op.name in ("constant", "iota") or ref in self._expand:
            return op
        moved = self._knowledge.moves(ref)
        return op if moved and (rank < 0 or not self._knowledge.facts_for(ref)) else None

    def _input(self, rank: int, name: str) -> int:
        owner = self.class_of(rank)
        type_ = self._types[f"{owner}:{name}"]
        return self._free(name, type_) if rank < 0 else self._related(owner, rank, name, type_)

    def _free(self, name: str, type_: TensorType) -> int:
        """Random values on random blocks; a function of the name, so that both sides see the same."""
        given = self._scenario.inputs.get(name)
        if given is not None and type_.sort != "Real":
            values = tuple(int(v) if type_.sort == "Int" else bool(v) for v in given.values)
            return self.network.add(Node("block", (), (given.cuts, values), type_.sort, type_.shape))
        if type_.sort != "Real":
            raise EvaluationError(f"{name} has no values")
        rng = random.Random(f"{self._seed} {name}")
        cuts = tuple((0, *sorted(rng.sample(range(1, n), min(_CUTS, n - 1))), n) for n in type_.shape)
        numbers = tuple(rng.uniform(0.5, 2.0) for _ in range(math.prod(len(c) - 1 for c in cuts)))
        return self.network.add(Node("block", (), (cuts, numbers), "Real", type_.shape))

    def _related(self, owner: str, rank: int, name: str, type_: TensorType) -> int:
        """The values that facts about the tensor give at one rank."""
        sources: list[int] = []
        pieces = []
        for number in self._facts_of(f"{owner}:{name}"):
            fact = self._knowledge.facts[number]
            at = self._symbols(fact, rank)
            if at is None:
                continue
            free = [s for s in fact.ranges if s not in at]
            sizes = tuple(fact.ranges[s][1] - fact.ranges[s][0] for s in free)
            axes = len(self._knowledge.model.tensors.mesh_axes(fact.lhs))
            pieces.append((
                sizes, tuple(_form(f, fact, at, free) for f in fact.lhs_index[axes:]),
                tuple(_form(f, fact, at, free) for f in fact.rhs_index), self._share(fact, rank),
                len(sources),
            ))  # fmt: skip
            sources.append(self._source(fact))
        if not pieces and not self._junk:
            raise EvaluationError(f"{owner}:{name} has no relation")
        junk = {"Real": 3.0, "Int": 0, "Bool": False}[type_.sort]
        return self.network.add(
            Node("layout", tuple(sources), (junk, tuple(pieces)), type_.sort, type_.shape)
        )

    def _facts_of(self, ref: str) -> Sequence[int]:
        return self._knowledge.facts_for(ref)

    def _share(self, fact: Fact, rank: int) -> float:
        """What one rank has of the right side. The first one has all of a sum."""
        axes = fact.lhs.axes if isinstance(fact.lhs, Reduced) and fact.lhs.kind == "add" else ()
        return 0.0 if any(self.coordinates(rank)[a] for a in axes) else float(fact.coef)

    def _source(self, fact: Fact) -> int:
        if not isinstance(fact.rhs, str) or not fact.rhs.startswith(("s:", "#f:")):
            raise EvaluationError(f"{fact.rhs} is no tensor of the specification")
        if fact.rhs.startswith("#"):
            return self.network.add(Node("constant", (), (Fraction(fact.rhs[3:]),), "Real", ()))
        return self.value(-1, split_ref(fact.rhs)[1])

    def _symbols(self, fact: Fact, rank: int) -> dict[str, int] | None:
        """Values of the symbols that choose the rank, or ``None`` if the fact is about other ranks."""
        at: dict[str, int] = {}
        coordinates = [self.coordinates(rank)[a] for a in self._knowledge.model.tensors.mesh_axes(fact.lhs)]
        for form, here in zip(fact.lhs_index, coordinates, strict=False):
            if form.is_const:
                if form.const != here:
                    return None
                continue
            ((symbol, coef),) = form.terms if len(form.terms) == 1 else (("", 0),)
            if coef != 1 or form.const:
                raise EvaluationError(f"{fact.lhs}: a rank is chosen by {form}")
            lo, hi = fact.ranges[symbol]
            if not lo <= here < hi or at.setdefault(symbol, here) != here:
                return None
        return at


class Given(Opened):
    """All of a program opened, on inputs that are as the facts about them say, and results of calls too.

    So a function is evaluated without its callers, and callers without what they call. What nothing is known
    of has some value: no fact can rest on it.
    """

    _junk = True

    def __init__(self, knowledge: Knowledge, scenario: Scenario, seed: int) -> None:
        super().__init__(knowledge, scenario, frozenset(), seed)

    def op(self, rank: int, name: str) -> Op | None:
        """The op of a tensor; ``None`` for an input and for a result of a call."""
        op = self._knowledge.model.ops.get(f"{self.class_of(rank)}:{name}")
        return None if op is None or op.name == CALL else op

    def _facts_of(self, ref: str) -> Sequence[int]:
        """Also those about its sum over ranks."""
        known = self._knowledge
        return [*known.facts_for(ref), *(n for r in known.partials.get(ref, ()) for n in known.facts_for(r))]

    def _free(self, name: str, type_: TensorType) -> int:
        given = self._scenario.inputs.get(name)
        if given is None or type_.sort != "Real":
            return super()._free(name, type_)
        values = tuple(map(float, given.values))
        return self.network.add(Node("block", (), (given.cuts, values), "Real", type_.shape))


def _form(affine: Affine, fact: Fact, at: dict[str, int], free: list[str]) -> Form:
    """An index form over the free symbols as box variables, counted from the start of their ranges."""
    const, terms = affine.const, []
    for symbol, coef in affine.terms:
        const += coef * (at[symbol] if symbol in at else fact.ranges[symbol][0])
        if symbol not in at:
            terms.append((free.index(symbol), coef))
    return const, tuple(sorted(terms))
