"""Widths, patterns and normal forms: the premises of the reduction theorem."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.errors import Rejected
from checker.language.affine import Affine
from checker.reading.plan import read_plan
from checker.reading.proof import read_proof
from checker.rules.algebra import Algebra, tiled
from checker.rules.laws import LAWS
from checker.rules.model import Model
from checker.rules.normalise import Normaliser
from checker.rules.widths import check_widths

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import NO_PLAN, dump, one_case, op, piece, plan_of, program, relation, z


def stage(
    ops: list[Any],
    n: int,
    m: int,
    goal: tuple[str, str],
    free: int,
    other: list[Any] | None = None,
    reps: list[list[int]] | None = None,
    skip: tuple[str, ...] = (),
) -> Algebra:
    """A stage over one class of size n whose goal says that two tensors of the specification agree; every op
    is substituted at all representatives."""
    spec = program([["a", f"f32[{n}]"]], ops + (other or []), [])
    local = program([["a", f"f32[{n}]"]], [], [])
    plan = read_plan(
        dump(
            plan_of(
                [["r", 1]],
                spec,
                [{"name": "c0", "box": {"r": [0, 1]}, "program": local}],
                [relation("a", "a", piece("c0", [n], [z(0)], [z(0)]))],
                [],
            )
        )
    )
    types = plan.spec.types
    trees = [[f"s:{v}", [[[0, ["i"]]] for _ in t.shape]] for v, t in types.items() if v not in skip]
    defs = [
        {"k": "def", "e": [f"s:{v}", [[0, r] for _ in t.shape]]}
        for v, t in types.items()
        if v not in ("a", *skip)
        for r in (range(m) if t.shape else range(1))
    ]
    index = [z(i) for i in range(free)]
    fact = {
        "lhs": f"s:{goal[0]}",
        "rhs": f"s:{goal[1]}",
        "coef": "1",
        "lhs_index": index,
        "rhs_index": index,
        "symbols": [[f"z{i}", 0, n] for i in range(free)],
        "by": None,
    }
    cases = [
        {"reps": [[r] for r in c], "premises": defs, "file": "0001"} for c in reps or [list(range(free))]
    ]
    proof = read_proof(
        dump(
            {
                "format": "trainverify-proof",
                "version": 1,
                "facts": [fact],
                "stages": [
                    {
                        "kind": "algebra",
                        "goal": 0,
                        "title": "t",
                        "classes": [["i", n, m]],
                        "trees": trees,
                        "goal_at": [["i"]] * free,
                        "cases": cases,
                    }
                ],
            }
        )
    )
    algebra = Algebra(Model(plan), proof.facts, proof.stages[0], "stage 0")  # type: ignore[arg-type]
    check_widths(algebra, "stage 0")
    return algebra


def total(result: str, x: str, kind: str = "add") -> list[Any]:
    return op(result, "reduce", [x], "f32[]", dims=[0], kind=kind)


def spread(result: str, x: str, n: int) -> list[Any]:
    return op(result, "broadcast_in_dim", [x], f"f32[{n}]", dims=[])


N = 64
EXP_OF_SUM = [total("%0", "a"), op("%1", "exponential", ["%0"], "f32[]")]
SUM_OF_EXP = [op("%2", "exponential", ["a"], f"f32[{N}]"), total("%3", "%2")]
SQUARES = [
    op("%0", "multiply", ["a", "a"], f"f32[{N}]"),
    total("%1", "%0"),
    op("%2", "rsqrt", ["%1"], "f32[]"),
    spread("%3", "%2", N),
    op("%4", "multiply", ["a", "%3"], f"f32[{N}]"),
]
SOFTMAX = [
    total("%0", "a", "max"),
    spread("%1", "%0", N),
    op("%2", "subtract", ["a", "%1"], f"f32[{N}]"),
    op("%3", "exponential", ["%2"], f"f32[{N}]"),
    total("%4", "%3"),
    spread("%5", "%4", N),
    op("%6", "divide", ["%3", "%5"], f"f32[{N}]"),
]


@pytest.mark.parametrize(
    "name,ops,goal,free,width",
    [
        ("sum of exp against exp of sum", EXP_OF_SUM + SUM_OF_EXP, ("%1", "%3"), 0, 3),
        (
            "square of a sum",
            [total("%0", "a"), op("%1", "multiply", ["%0", "%0"], "f32[]")],
            ("%1", "%1"),
            0,
            2,
        ),
        ("RMSNorm without mean", SQUARES, ("%4", "%4"), 1, 4),
        ("softmax", SOFTMAX, ("%6", "%6"), 1, 6),
        ("maximum", [total("%0", "a", "max")], ("%0", "%0"), 0, 2),
    ],
)
def test_widths(name: str, ops: list[Any], goal: tuple[str, str], free: int, width: int) -> None:
    assert stage(ops, N, width, goal, free).cases
    with pytest.raises(Rejected, match=f"obligation 9 .*{width} are needed"):
        stage(ops, N, width - 1, goal, free)


def test_a_small_class_is_exact() -> None:
    """With n <= w every element is there, and every coincidence pattern must be."""
    ops = [op("%0", "negate", ["a"], "f32[2]")]
    double = {"ops": ops, "n": 2, "m": 2, "goal": ("%0", "%0"), "free": 1}
    assert stage(**double, reps=[[0]]).cases  # type: ignore[arg-type]
    for reps in ([[1]], [[0], [0]], [[0], [1]]):
        with pytest.raises(Rejected, match="obligation 10 "):
            stage(**double, reps=reps)  # type: ignore[arg-type]


def test_fewer_representatives_than_free_indices() -> None:
    ops = [op("%0", "broadcast_in_dim", ["a"], f"f32[{N},{N}]", dims=[1])]
    with pytest.raises(Rejected, match="obligation 9 "):
        stage(ops, N, 1, ("%0", "%0"), 2)


def test_a_constant_is_read_and_not_defined() -> None:
    ops = [op("%0", "constant", [], f"f32[{N}]", value="2"), op("%1", "multiply", ["%0", "a"], f"f32[{N}]")]
    with pytest.raises(Rejected, match=r"obligation 5 .*constant of s:%0 has no algebra def"):
        stage(ops, N, 1, ("%1", "%1"), 1)


A, B, C = (("lit", Fraction(0)), ("f", ("lit", Fraction(1))), ("f", ("lit", Fraction(2))))


def test_laws() -> None:
    one = ("lit", Fraction(1))
    assert LAWS["ring"].holds(NO_PLAN, ("mul", B, ("+", C, one)), ("+", ("mul", C, B), B))
    assert LAWS["ring"].holds(NO_PLAN, ("-", B, B), A)
    assert not LAWS["ring"].holds(NO_PLAN, ("mul", B, B), B)
    assert not LAWS["ring"].holds(
        NO_PLAN, ("f", ("+", B, C)), ("f", ("+", C, B))
    )  # under a function: not the ring's business
    assert LAWS["lattice"].holds(NO_PLAN, ("max2", B, ("max2", C, B)), ("max2", C, B))
    assert LAWS["lattice"].holds(NO_PLAN, ("max2", B, B), B)
    assert not LAWS["lattice"].holds(NO_PLAN, ("max2", B, ("min2", C, B)), ("max2", C, B))
    assert not LAWS["lattice"].holds(NO_PLAN, B, B)
    assert LAWS["recip"].holds(NO_PLAN, ("recip", ("lit", Fraction(4))), ("lit", Fraction(1, 4)))
    assert not LAWS["recip"].holds(NO_PLAN, ("recip", ("lit", Fraction(0))), ("lit", Fraction(0)))
    assert not LAWS["recip"].holds(NO_PLAN, ("recip", B), B)


def test_normal_forms_know_congruence_and_lattices() -> None:
    normal = Normaliser({})
    assert normal.equal(("f", ("+", B, C)), ("f", ("+", C, B)))
    assert normal.equal(("max2", ("+", B, C), ("max2", B, ("+", C, B))), ("max2", B, ("+", B, C)))
    assert not normal.equal(("f", B), ("g", B))
    assert not normal.equal(("max2", B, C), ("min2", B, C))


def test_a_constant_operand_needs_no_trees() -> None:
    """Ones on the left of a contraction: the other operand says how the contracted axis is cut."""
    ops = [
        op("%0", "constant", [], f"f32[{N}]", value="1"),
        op(
            "%1",
            "dot_general",
            ["%0", "a"],
            "f32[]",
            lhs_batch=[],
            rhs_batch=[],
            lhs_contract=[0],
            rhs_contract=[0],
        ),
    ]
    algebra = stage([*ops], N, 2, ("%1", "%1"), 0, skip=("%0",))
    assert algebra.cases[0].defs


CLASSES = {"i": (2, 2), "j": (3, 2), "k": (1, 1)}


@st.composite
def trees(draw: st.DrawFn, width: int = 1, deep: int = 3) -> list[tuple[int, list[str], list[int]]]:
    """Pieces that tile a range: axes one after the other, each a class of something smaller."""
    pieces: list[tuple[int, list[str], list[int]]] = []
    low = 0
    for _ in range(draw(st.integers(1, width))):
        cls = draw(st.sampled_from(["", *CLASSES] if deep else [""]))
        inner = draw(trees(2, deep - 1)) if cls else [(0, list[str](), list[int]())]
        step = size(inner)
        pieces += [
            (low + o, [cls, *names] if cls else names, [step, *steps] if cls else steps)
            for o, names, steps in inner
        ]
        low += CLASSES[cls][0] * step if cls else 1
    return pieces


def size(pieces: list[tuple[int, list[str], list[int]]]) -> int:
    cut = [(o, [(CLASSES[c][0], s) for c, s in zip(cs, ss, strict=True)]) for o, cs, ss in pieces]
    found = tiled(cut, 0)
    assert found is not None
    return found


@settings(max_examples=60, deadline=None)
@given(trees(3), st.data())
def test_division_finds_what_a_search_finds(pieces: Any, data: st.DataObject) -> None:
    """Every form of a piece is decoded to itself; a form of no piece has no place."""
    made = one_case(
        [], spec=program([["g", "f32[]"]], [], []), classes=tuple((c, n, m) for c, (n, m) in CLASSES.items())
    )
    tree = tuple((o, tuple(names), tuple(steps)) for o, names, steps in pieces)
    number, piece = data.draw(st.sampled_from([*enumerate(tree)]))
    reps = [data.draw(st.integers(0, CLASSES[c][1] - 1)) for c in piece[1]]
    form = made._form(piece, [f"{c}.{r}" for c, r in zip(piece[1], reps, strict=True)])
    assert made._decode(form, tree) == (number, *reps)
    name, c = (
        data.draw(st.sampled_from(["", "i.0", "i.1", "j.0", "j.1"])),
        data.draw(st.sampled_from([-2, 1, 3])),
    )
    other = Affine.total([(1, form), (c, Affine.symbol(name) if name else Affine(1))])
    there = {
        made._form(p, names): (n, *(int(v[2:]) for v in names))
        for n, p in enumerate(tree)
        for names in product(*([f"{c}.{r}" for r in range(CLASSES[c][1])] for c in p[1]))
    }
    assert made._decode(other, tree) == there.get(other)
