"""Terms keep their value when boxes are cut; pieces of one coordinate end up equal or apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction

import pytest

from certificates.plan.affine import Affine, Range
from orchestrator.cells import Cut, Digits, Unfollowable
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.recipes import Use
from orchestrator.spanning.expansion import Expansion
from orchestrator.spanning.refining import Refinement
from orchestrator.spanning.terms import Leaf, Term, Trace, collected, split
from smtlib_emit.model import Model

from ..plans import every_op

Elements = dict[tuple[tuple[str, tuple[int, ...]], ...], Fraction]


def read(at: Affine, box: Mapping[str, Range], coef: int = 1) -> Term:
    """A sum of elements of ``x``, which has 24 of them."""
    use = Use("s:x", (at,))
    return Term(Fraction(coef), (Leaf("s:x", (at,)),), box, Trace(uses=(use,)))


def elements(terms: list[Term]) -> Elements:
    """What terms add up to, product by product."""
    total: Elements = {}
    for t in terms:
        for values in itertools.product(*(range(*r) for r in t.box.values())):
            here = dict(zip(t.box, values, strict=True))
            key = tuple(sorted((str(x.ref), tuple(f.evaluate(here) for f in x.at)) for x in t.leaves()))
            total[key] = total.get(key, Fraction(0)) + t.coef
    return total


def names() -> Expansion:
    return Expansion(Knowledge(Model(every_op())))


RANK, ROW, ALL = Affine.symbol("r"), Affine.symbol("k"), Affine.symbol("i")
SHARDS = [
    ("even", [read(RANK.scale(6) + ROW, {"r": (0, 4), "k": (0, 6)})]),
    ("uneven", [read(RANK.scale(7) + ROW, {"r": (0, 3), "k": (0, 7)}), read(ROW + 21, {"k": (0, 3)})]),
    ("halves", [read(RANK.scale(6) + ROW + 3 * h, {"r": (0, 4), "k": (0, 3)}) for h in (0, 1)]),
    ("every other", [read(ROW.scale(2) + h, {"k": (0, 12)}) for h in (0, 1)]),
    ("parts", [read(ROW, {"k": (lo, hi)}) for lo, hi in ((0, 5), (5, 6), (6, 24))]),
]


@pytest.mark.parametrize("shards", [s for _, s in SHARDS], ids=[n for n, _ in SHARDS])
def test_shards_and_the_whole_become_the_same_terms(shards: list[Term]) -> None:
    whole = [read(ALL, {"i": (0, 24)})]
    assert collected(shards) != collected(whole)
    expansion = names()
    mine, theirs = Refinement(expansion.model, {}, expansion.fresh).of([shards, whole])
    assert elements(mine) == elements(shards) == elements(whole) == elements(theirs)
    assert collected(mine) == collected(theirs)


def test_a_symbol_of_the_goal_is_not_cut_here() -> None:
    expansion = names()
    refinement = Refinement(expansion.model, {"g": (0, 24)}, expansion.fresh)
    with pytest.raises(Cut) as error:
        refinement.of([[read(Affine.symbol("g"), {})], [read(ROW, {"k": (0, 5)})]])
    assert (error.value.symbol, error.value.position) == ("g", 5)


def test_terms_that_are_cut_have_the_same_elements() -> None:
    expansion, term = names(), read(ROW + 2, {"k": (4, 16)})
    for error in (Cut("k", 9), Digits("k", 3, 2), Digits("k", 4, 0)):
        assert elements(split(term, error, expansion.fresh)) == elements([term])
    with pytest.raises(Unfollowable, match="not aligned to 5"):
        split(term, Digits("k", 5, 0), expansion.fresh)
