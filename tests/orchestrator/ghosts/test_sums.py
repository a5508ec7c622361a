"""Sums of products have one name, however they are nested and grouped."""

from __future__ import annotations

from fractions import Fraction

from certificates.authoring.build import ProgramBuilder
from orchestrator.ghosts.sums import Sums, placed, places_of
from orchestrator.ghosts.values import ONE, Atom, Exponential, Letter, Powers
from orchestrator.ghosts.writing import Writer

QUERIES, KEYS, WIDTH = 0, 1, 2
SIZES = (4, 5, 3)


def sums() -> Sums:
    b = ProgramBuilder()
    for name, kind in (("s", "f32[4,5]"), ("g", "f32[4,3]"), ("v", "f32[5,3]")):
        b.input(name, kind)
    b.output("y", b.input("z", "f32[4]"))
    return Sums(Writer(b.build()), lambda _: None, lambda a: isinstance(a, Letter) and a.name in "gv")


def factors(*atoms: Atom) -> Powers:
    return frozenset((a, ONE) for a in atoms)


E = Exponential(factors(Letter("s", (QUERIES, KEYS))))
G, V = Letter("g", (QUERIES, WIDTH)), Letter("v", (KEYS, WIDTH))


def test_an_exchange_of_sums_is_seen() -> None:
    """``sum_d g (sum_j e v)`` and ``sum_j e (sum_d g v)``."""
    s = sums()
    out = s.over(factors(E, V), (KEYS,), SIZES, "f32")
    assert set(out.at) == {QUERIES, WIDTH}
    one = s.over(factors(out, G), (WIDTH,), SIZES, "f32")
    scores = s.over(factors(G, V), (WIDTH,), SIZES, "f32")
    assert s.over(factors(E, scores), (KEYS,), SIZES, "f32") == one
    assert one.at == (QUERIES,)


def test_what_needs_no_law_is_summed_first() -> None:
    s = sums()
    s.over(factors(E, G, V), (KEYS, WIDTH), SIZES, "f32")
    dots = [op for op in s.writer.ghosts if op.name == "dot_general"]
    assert [op.ins for op in dots] == [("g", "v")]


def test_other_places_are_other_sums() -> None:
    s = sums()
    rows = s.over(factors(E), (KEYS,), SIZES, "f32")
    columns = s.over(factors(E), (QUERIES,), SIZES, "f32")
    assert rows.name != columns.name and (rows.at, columns.at) == ((QUERIES,), (KEYS,))
    assert s.over(factors(E), (KEYS,), SIZES, "f32") == rows
    twice: Powers = frozenset({(E, Fraction(2))})
    assert s.over(twice, (KEYS,), SIZES, "f32") != rows


def test_a_sum_may_get_another_name() -> None:
    s = sums()
    rows = s.over(factors(E), (KEYS,), SIZES, "f32")
    assert s.own(rows.name) and not s.own("g")
    assert s.renamed(rows.name, "%99") == placed(factors(E), {QUERIES: 0, KEYS: 1})
    assert s.over(factors(E), (KEYS,), SIZES, "f32").name == "%99"
    assert set(s.named()) == {rows.name, "%99"}


def test_where_an_atom_lies() -> None:
    assert places_of(E) == {QUERIES, KEYS} and places_of(G) == {QUERIES, WIDTH}
