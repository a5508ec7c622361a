"""The law `root`, sqrt(p) sqrt(p) = p: every condition of docs/certificate.md, held and broken."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Rejected
from checker.language.proof import Element, Reduced, Tensor
from checker.reading.plan import read_plan
from checker.rules import roots
from checker.rules.algebra import Algebra
from checker.rules.model import Model
from checker.rules.roots import holds, nonnegative

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, one_case, op, plan_of, program

V = "f32[4]"
#: Results over x (any sign), i (integers), p (booleans), e = exp x and w = x - x: name, op, operands, type, …
OPS = [
    op("%e", "exponential", ["x"], V),
    op("%w", "subtract", ["x", "x"], V),
    op("%b", "reshape", ["x"], "f32[2,2]"),
    op("%f", "reshape", ["%e"], "f32[2,2]"),
    op("%c", "constant", [], V, value="1/2"),
    op("%0", "constant", [], V, value="0"),
    op("%m", "constant", [], V, value="-1"),
    op("%h", "constant", [], V, value="inf"),
    op("%t", "constant", [], "i1[4]", value="true"),
    op("%z", "constant", [], "f32[]", value="0"),
    op("%y", "constant", [], "f32[]", value="-1"),
]


def model(*ops: Any) -> Model:
    """A specification with these ops after OPS; results are renamed to what the format allows."""
    names: dict[str, str] = {}

    def renamed(o: Any) -> Any:
        operands = [names.get(v, v) for v in o[2]]
        names[o[0]] = f"%{len(names)}"
        return [names[o[0]], o[1], operands, *o[3:]]

    spec = program([["x", V], ["i", "i64[4]"], ["p", "i1[4]"]], [renamed(o) for o in [*OPS, *ops]], [])
    return Model(
        read_plan(
            dump(
                plan_of(
                    [["r", 1]],
                    spec,
                    [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}],
                    [],
                    [],
                )
            )
        )
    )


def last(*ops: Any) -> bool:
    """Is the last result not negative?"""
    found = model(*ops)
    return nonnegative(found, Tensor("s", found.plan.spec.ops[-1].result))


def one(name: str, *operands: str, type_: str = V, **attrs: Any) -> bool:
    return last([*op("%r", name, list(operands), type_)[:4], attrs, None])


@pytest.mark.parametrize("name", ["exponential", "sqrt", "abs", "logistic"])
def test_never_negative(name: str) -> None:
    assert one(name, "x") and one(name, "%m")


@pytest.mark.parametrize("name", ["log", "rsqrt", "sine", "cosine", "tanh", "negate"])
@pytest.mark.parametrize("operand", ["x", "%e"])
def test_functions_that_may_be_negative(name: str, operand: str) -> None:
    assert not one(name, operand)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_of_two(name: str) -> None:
    assert one(name, "%e", "%c") and one(name, "%0", "%e")
    for a, b in (("x", "%e"), ("%e", "x"), ("%e", "%w"), ("%e", "%m"), ("%m", "%e"), ("%e", "%h")):
        assert not one(name, a, b)
    assert one(name, "x", "x") == (name == "multiply")


@pytest.mark.parametrize("name", ["subtract", "divide", "power"])
def test_of_two_never(name: str) -> None:
    assert not one(name, "%e", "%e") and not one(name, "%e", "%c")


def test_inputs_and_constants() -> None:
    found = model()
    names = dict(zip((o[0] for o in OPS), found.plan.spec.ops, strict=True))
    good = {o for o in names if nonnegative(found, Tensor("s", names[o].result))}
    assert good == {"%e", "%f", "%c", "%0", "%z"}
    for name in ("x", "i", "p"):
        assert not nonnegative(found, Tensor("s", name))
    assert nonnegative(found, Tensor("#f", "0")) and not nonnegative(found, Tensor("#f", "-1"))
    assert not nonnegative(found, Tensor("#b", "true"))


def test_conversions() -> None:
    assert one("convert", "%e", type_="f64[4]") and not one("convert", "x", type_="f64[4]")
    assert one("convert", "%e", type_="bf16[4]") and not one("convert", "i") and not one("convert", "p")


@pytest.mark.parametrize(
    "good,bad,name,kind,attrs",
    [
        ("%e", "x", "broadcast_in_dim", "f32[2,4]", {"dims": [1]}),
        ("%e", "x", "reshape", "f32[2,2]", {}),
        ("%f", "%b", "transpose", "f32[2,2]", {"perm": [1, 0]}),
        ("%e", "x", "slice", "f32[2]", {"start": [1], "stride": [1]}),
        ("%e", "x", "reduce", "f32[]", {"dims": [0], "kind": "add"}),
        ("%e", "x", "reduce", "f32[]", {"dims": [0], "kind": "max"}),
        ("%e", "x", "reduce", "f32[]", {"dims": [0], "kind": "min"}),
    ],
)
def test_of_one(good: str, bad: str, name: str, kind: str, attrs: dict[str, Any]) -> None:
    assert one(name, good, type_=kind, **attrs) and not one(name, bad, type_=kind, **attrs)


def test_of_several_and_of_a_padding_value() -> None:
    def pad(x: str, value: str) -> bool:
        return one("pad", x, value, type_="f32[5]", low=[1], high=[0])

    assert pad("%e", "%z") and not pad("%e", "%y") and not pad("x", "%z")
    assert one("concatenate", "%e", "%c", "%e", type_="f32[12]", dim=0)
    assert not one("concatenate", "%e", "%c", "x", type_="f32[12]", dim=0)
    contract = {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [0], "rhs_contract": [0]}
    for a, b, good in (("%e", "%c", True), ("%e", "x", False), ("x", "%e", False), ("x", "x", False)):
        assert one("dot_general", a, b, type_="f32[]", **contract) == good


def test_what_is_not_followed() -> None:
    """Selections and gathers could be, and are not; an iota neither."""
    assert not one("select", "%t", "%e", "%e")
    assert not one("gather", "%e", "i", axis=0, batch_dims=0)
    assert not one("iota", type_="f32[4]", dim=0)
    assert not one("compare", "%e", "%e", type_="i1[4]", direction="EQ")


def test_through_many_ops() -> None:
    root = [
        op("%r", "multiply", ["x", "x"], V),
        op("%s", "reduce", ["%r"], "f32[]", dims=[0], kind="add"),
        op("%u", "broadcast_in_dim", ["%s"], V, dims=[]),
    ]
    assert last(*root, op("%v", "add", ["%u", "%e"], V))
    assert not last(*root, op("%v", "add", ["%u", "%e"], V), op("%q", "add", ["%v", "%w"], V))


def test_the_cone_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [op(f"%k{i}", "add", [f"%k{i - 1}" if i else "%e", "%e"], V) for i in range(5)]
    assert last(*chain)
    monkeypatch.setattr(roots, "MAX_CONE", 3)
    assert not last(*chain)


# Collectives of several classes -----------------------------------------------------------------------------

COLLECTIVES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("all_reduce", "f32[2]", "f32[2]", {"kind": "add"}),
    ("all_reduce", "f32[2]", "f32[2]", {"kind": "max"}),
    ("all_gather", "f32[2]", "f32[4]", {"dim": 0}),
    ("reduce_scatter", "f32[2]", "f32[1]", {"kind": "add", "dim": 0}),
    ("all_to_all", "f32[2,2]", "f32[1,4]", {"split_dim": 0, "concat_dim": 1}),
]


def two_classes(name: str, before: str, after: str, attrs: dict[str, Any], ops: tuple[str, str]) -> Model:
    """Each of two classes applies its own op to x, and both meet in one collective."""
    classes = [
        {
            "name": f"c{r}",
            "box": {"r": [r, r + 1]},
            "program": program(
                [["x", before]],
                [
                    op("%0", ops[r], ["x"], before),
                    op("%1", name, ["%0"], after, group="g", seq=0, **attrs),
                    op("%2", "negate", ["x"], before),
                ],
                [],
            ),
        }
        for r in range(2)
    ]
    return Model(
        read_plan(
            dump(
                plan_of(
                    [["r", 2]],
                    program([], [], []),
                    classes,
                    [],
                    [],
                    {"g": {"axes": ["r"], "ranks": [[0, 1]]}},
                )
            )
        )
    )


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda c: f"{c[0]} {c[3].get('kind', '')}")
def test_collectives_look_at_all_ranks(collective: tuple[str, str, str, dict[str, Any]]) -> None:
    for ops in (("exponential", "abs"), ("exponential", "negate"), ("negate", "exponential")):
        found = two_classes(*collective, ops)
        for cls in ("c0", "c1"):
            assert nonnegative(found, Tensor(cls, "%1")) == ("negate" not in ops), (ops, cls)


def test_reduced_tensors_look_at_all_members() -> None:
    for ops in (("exponential", "abs"), ("exponential", "negate"), ("negate", "exponential")):
        members = tuple(Tensor(cls, "%0") for cls in ("c0", "c1"))
        found = two_classes(*COLLECTIVES[0], ops)
        assert nonnegative(found, Reduced("add", ("r",), members)) == ("negate" not in ops)


# Functions --------------------------------------------------------------------------------------------------


def calling(*operands: str, wrong: str = "") -> Model:
    """f gives a copy of a, its square and its negative; it is called with these, in c1 also others."""
    body = program(
        [["a", V], ["b", V]],
        [op("%0", "reshape", ["a"], V), op("%1", "multiply", ["a", "a"], V), op("%2", "negate", ["a"], V)],
        [["y", "%0"], ["z", "%1"], ["w", "%2"]],
    )

    def outer(values: tuple[str, ...]) -> Any:
        results = [[f"%{3 * n + 10 + k}" for k in range(3)] for n in range(len(values))]
        return program(
            [["x", V]],
            [
                op("%0", "exponential", ["x"], V),
                op("%1", "abs", ["x"], V),
                *(
                    [r, "call", [v, "x"], "f", n]
                    for n, (r, v) in enumerate(zip(results, values, strict=True))
                ),
            ],
            [],
        )

    classes = [
        {
            "name": f"c{r}",
            "box": {"r": [r, r + 1]},
            "program": outer((wrong, *operands[1:]) if wrong and r else operands),
        }
        for r in range(2)
    ]
    plan = plan_of([["r", 2]], outer(operands), classes, [], [])
    plan["functions"] = {"f": {"specification": body, "classes": {"c0": body, "c1": body}}}
    return Model(read_plan(dump(plan)))


def inside(caller: Model) -> Model:
    return Model(caller.plan.functions["f"], "f", caller.plan)


@pytest.mark.parametrize(
    ("operands", "good"),
    [
        (("%0",), True),
        (("%0", "%1"), True),
        (("x",), False),
        (("%0", "x"), False),
        (("x", "%0"), False),
        ((), True),
    ],
)
def test_an_input_of_a_function_is_what_every_call_hands_over(operands: tuple[str, ...], good: bool) -> None:
    body = inside(calling(*operands))
    for space in ("s", "c0"):
        assert nonnegative(body, Tensor(space, "a")) == nonnegative(body, Tensor(space, "%0")) == good
        assert nonnegative(body, Tensor(space, "%1")) and not nonnegative(body, Tensor(space, "%2"))
        assert not operands or not nonnegative(body, Tensor(space, "b")), "the other input"


def test_results_of_a_call_rest_on_all_calls() -> None:
    """%10 is the first call's copy, %11 its square, %12 its negative; %13 the second call's copy."""
    for operands, good in ((("%0", "%1"), True), (("%0", "x"), False)):
        found = calling(*operands)
        assert [nonnegative(found, Tensor("s", f"%{n}")) for n in (10, 11, 12)] == [good, True, False]
    assert nonnegative(calling("%0", "%10"), Tensor("s", "%13")), "handed from call to call"


def test_a_function_of_one_class_hears_of_its_own_calls() -> None:
    body = inside(calling("%0", wrong="x"))
    assert [nonnegative(body, Tensor(c, "a")) for c in ("s", "c0", "c1")] == [True, True, False]


def test_a_literal_in_a_function_is_not_an_input() -> None:
    body = inside(calling("%0"))
    assert nonnegative(body, Tensor("#f", "0")) and not nonnegative(body, Tensor("#f", "-1"))


# Instances --------------------------------------------------------------------------------------------------


def lit(value: int | str) -> Any:
    return ("lit", Fraction(value))


def root(p: Any) -> Any:
    return ("fsqrt", p)


FOUND = model()
E, W = (Element(Tensor("s", FOUND.plan.spec.ops[i].result), ((0, 0),)) for i in (0, 1))
E1, X = Element(E.ref, ((0, 1),)), Element(Tensor("s", "x"), ((0, 0),))
BAD: list[tuple[str, Any, Any]] = [
    ("an input", ("mul", root(X), root(X)), X),
    ("a difference", ("mul", root(W), root(W)), W),
    ("another p under the second root", ("mul", root(E), root(E1)), E),
    ("another p under the first root", ("mul", root(E1), root(E)), E),
    ("another p on the right", ("mul", root(E), root(E)), E1),
    ("a literal for p on the right", ("mul", root(E), root(E)), lit(1)),
    ("zero", ("mul", root(lit(0)), root(lit(0))), lit(0)),
    ("a negative literal", ("mul", root(lit(-4)), root(lit(-4))), lit(-4)),
    ("two literals", ("mul", root(lit(4)), root(lit(9))), lit(4)),
    ("a term that is no element", ("mul", root(("+", E, E)), root(("+", E, E))), ("+", E, E)),
    ("an infinity", ("mul", root(("pos_inf",)), root(("pos_inf",))), ("pos_inf",)),
    ("one root", ("mul", root(E), E), E),
    ("a sum", ("+", root(E), root(E)), E),
    ("another function", ("mul", ("frsqrt", E), ("frsqrt", E)), E),
    ("sides exchanged", E, ("mul", root(E), root(E))),
    ("recip of another literal", ("mul", root(lit(2)), ("recip", root(lit(3)))), lit(1)),
    ("recip with another result", ("mul", root(lit(2)), ("recip", root(lit(2)))), lit(2)),
    ("recip of zero", ("mul", root(lit(0)), ("recip", root(lit(0)))), lit(1)),
    ("recip of a negative literal", ("mul", root(lit(-2)), ("recip", root(lit(-2)))), lit(1)),
    ("recip of an element", ("mul", root(E), ("recip", root(E))), lit(1)),
    ("recip first", ("mul", ("recip", root(lit(2))), root(lit(2))), lit(1)),
]
GOOD: list[tuple[str, Any, Any]] = [
    ("an exponential", ("mul", root(E), root(E)), E),
    ("a literal", ("mul", root(lit(4)), root(lit(4))), lit(4)),
    ("a fraction", ("mul", root(lit("1/2")), root(lit("1/2"))), lit("1/2")),
    *((f"recip of {c}", ("mul", root(lit(c)), ("recip", root(lit(c)))), lit(1)) for c in ("2", "1/2")),
]


@pytest.mark.parametrize("name,left,right", BAD, ids=[b[0] for b in BAD])
def test_no_instance(name: str, left: Any, right: Any) -> None:
    assert not holds(FOUND, left, right)


@pytest.mark.parametrize("name,left,right", GOOD, ids=[g[0] for g in GOOD])
def test_instance(name: str, left: Any, right: Any) -> None:
    assert holds(FOUND, left, right)


# In a case --------------------------------------------------------------------------------------------------


def law(p: Any, right: Any = None) -> dict[str, Any]:
    return {
        "k": "law",
        "schema": "root",
        "lhs": ["mul", ["fsqrt", p], ["fsqrt", p]],
        "rhs": p if right is None else right,
    }


def at(ref: Any, *coords: list[int]) -> list[Any]:
    return ["e", ref, list(coords)]


def case(*premises: Any) -> Algebra:
    """x cut over two ranks: an exponential, constants, sums over its dimension and over the ranks."""
    contract = {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [0], "rhs_contract": [0]}
    spec = program(
        [["g", "f32[]"], ["x", V]],
        [
            op("%0", "exponential", ["x"], V),
            op("%1", "subtract", ["x", "x"], V),
            op("%2", "reduce", ["%0"], "f32[]", dims=[0], kind="add"),
            op("%3", "reduce", ["%0"], "f32[]", dims=[0], kind="max"),
            op("%4", "dot_general", ["%0", "%0"], "f32[]", **contract),
            op("%5", "constant", [], V, value="4"),
            op("%6", "constant", [], V, value="0"),
        ],
        [],
    )
    trees = {f"s:{v}": [[[0, ["i"]]]] for v in ("x", "%0", "%1", "%5", "%6")}
    trees |= {"s:%2": [], "s:%3": [], "s:%4": [], "c0:x": [[[0, ["r"]]], [[0, ["i"]]]]}
    return one_case(
        list(premises),
        spec=spec,
        local=program([["x", V]], [], []),
        mesh=2,
        trees=trees,
        classes=(("i", 4, 4), ("r", 2, 2)),
        reduced=tuple((red(k), [[[0, ["i"]]]]) for k in KINDS),
    )


KINDS = ("add", "max")


def red(kind: str) -> dict[str, Any]:
    return {"kind": kind, "axes": ["r"], "of": ["c0:x"]}


P, FIRST = at("s:%0", [0, 0]), [0, 0]
EXP = {"k": "def", "e": ["s:%0", [FIRST]]}


def test_accepted_beside_definitions_without_sums() -> None:
    """Elements of constants are read as their literals first."""
    for premises in (
        [law(P)],
        [EXP, law(P)],
        [law(P), EXP],
        [law(at("s:%5", FIRST))],
        [law(["lit", "4"])],
        [law(at("s:%5", FIRST), ["lit", "4"])],
        [law(P), {"k": "def", "e": ["s:%1", [FIRST]]}],
    ):
        assert case(*premises).cases


@pytest.mark.parametrize(
    "p,right",
    [
        (at("s:x", FIRST), None),
        (at("s:%1", FIRST), None),
        (P, at("s:%0", [0, 1])),
        (at("s:%6", FIRST), None),
        (["lit", "0"], None),
        (["lit", "-1"], None),
        (at(red("add"), FIRST), None),
    ],
)
def test_refused(p: Any, right: Any) -> None:
    with pytest.raises(Rejected, match=r"^obligation 7 .*this is no instance of the root law"):
        case(law(p, right))


SUMS = [
    {"k": "def", "e": ["s:%2", []]},
    {"k": "def", "e": ["s:%3", []]},
    {"k": "def", "e": ["s:%4", []]},
    *({"k": "def", "e": [red(k), [FIRST]]} for k in KINDS),
]


@pytest.mark.parametrize(
    "total", SUMS, ids=["reduce add", "reduce max", "dot_general", "sum over ranks", "maximum over ranks"]
)
def test_refused_beside_a_sum(total: dict[str, Any]) -> None:
    assert case(total).cases
    for premises in ([law(P), total], [total, law(P)], [total, law(["lit", "4"])]):
        with pytest.raises(Rejected, match=r"^obligation 7 .*the root law beside a sum"):
            case(*premises)


@pytest.mark.parametrize("value,good", [("%1", True), ("%2", True), ("%0", False), ("a", False)])
def test_a_result_of_a_call_is_what_its_function_computes(value: str, good: bool) -> None:
    """Whatever its operands are: what hands an operand on, or flips its sign, shows nothing."""
    body = program(
        [["a", V]],
        [op("%0", "negate", ["a"], V), op("%1", "multiply", ["a", "a"], V), op("%2", "reshape", ["%1"], V)],
        [["r", value]],
    )
    caller = program([["x", V]], [[["%0"], "call", ["x"], "f0", 0], op("%1", "add", ["%0", "%0"], V)], [])
    plan = plan_of([["r", 1]], caller, [{"name": "c0", "box": {"r": [0, 1]}, "program": caller}], [], [])
    plan["functions"] = {"f0": {"specification": body, "classes": {"c0": body}}}
    found = Model(read_plan(dump(plan)))
    for space in ("s", "c0"):
        assert nonnegative(found, Tensor(space, "%1")) == good
