"""Rank classes that meet: no value rests on itself, and what classes bring to a rendezvous fits together.

The forged bundles are complete: solvers refute every file of them, so that only the checker's own look at
the plan stands between them and VALID.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from certificates.errors import FormatError
from certificates.plan.reading import loads
from checker.errors import Rejected, Undecided
from checker.reading.plan import read_plan
from checker.rules import acyclic
from checker.rules.acyclic import check_acyclic, joined

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import Bundle, dump, forged, op, piece, plan_of, program, relation, z

X = ["x", "f32[3]"]
GROUPS = {"g": {"axes": ["dp"], "ranks": [[0, 1]]}}


def meet(result: str, operand: str, seq: int, group: str = "g") -> Any:
    return op(result, "all_reduce", [operand], "f32[3]", group=group, kind="add", seq=seq)


def five_is_two(*programs: list[Any], functions: Any = None) -> dict[str, Any]:
    """The claim that 5 x = 2 x on two classes with these ops."""

    def scaled(ops: list[Any], factor: str) -> Any:
        last = [
            op("%90", "constant", [], "f32[3]", value=factor),
            op("%91", "multiply", ["x", "%90"], "f32[3]"),
        ]
        return program([X], [*ops, *last], [["y", "%91"]])

    classes = [
        {"name": f"c{i}", "box": {"dp": [i, i + 1]}, "program": scaled(ops, "5")}
        for i, ops in enumerate(programs)
    ]
    calls = [o for o in programs[0] if o[1] == "call"]
    own = [[[f"%{50 + i}"], "call", ["x"], *o[3:]] for i, o in enumerate(calls)]
    pieces = [piece(c["name"], [3], [z(0)], [z(0)]) for c in classes]
    plan = plan_of(
        [["dp", 2]],
        scaled(own, "2"),
        classes,
        [relation("x", "x", *pieces)],
        [relation("y", "y", *pieces)],
        GROUPS,
    )
    return plan | ({"functions": functions} if functions else {})


def circle() -> dict[str, Any]:
    """Each rendezvous needs what the other gives: a = x + p, p = a + x, hence x = 0."""
    return five_is_two([meet("%0", "x", 1), meet("%1", "%0", 2)], [meet("%0", "x", 2), meet("%1", "%0", 1)])


def circular() -> Bundle:
    """A proof that follows from the definitions: the two rendezvous written out."""

    def at(cls: int) -> list[Any]:
        return [cls, z(0)]

    def total(a: str, b: str) -> dict[str, Any]:
        return {"kind": "add", "axes": ["dp"], "of": [f"c0:{a}", f"c1:{b}"]}

    facts = [
        {
            "lhs": f"c{i}:x",
            "rhs": "s:x",
            "coef": "1",
            "symbols": [["dp", i, i + 1], ["z0", 0, 3]],
            "lhs_index": [{"dp": 1}, z(0)],
            "rhs_index": [z(0)],
            "by": {"input": 0},
        }
        for i in range(2)
    ]
    facts += [
        {
            "lhs": f"c{i}:%91",
            "rhs": "s:%91",
            "coef": "1",
            "symbols": [["dp", i, i + 1], ["z0", 0, 3]],
            "lhs_index": [{"dp": 1}, z(0)],
            "rhs_index": [z(0)],
            "by": {"output": 0},
        }
        for i in range(2)
    ]
    stages = []
    for i in range(2):
        premises = [
            {"k": "def", "t": t, "at": where, "arg": None}
            for t, where in (
                (f"c{i}:%91", [{"dp": 1}, z(0)]),
                ("c0:%0", at(0)),
                ("c1:%0", at(1)),
                (total("x", "%0"), [z(0)]),
                (total("%0", "x"), [z(0)]),
                ("s:%91", [z(0)]),
            )
        ]
        premises += [{"k": "hyp", "facts": [k], "at": at(k), "lift": [], "kind": "add"} for k in range(2)]
        premises += [{"k": "hyp", "facts": [i], "at": [{"dp": 1}, z(0)], "lift": [], "kind": "add"}]
        stages.append(
            {
                "kind": "layout",
                "goal": 2 + i,
                "title": "t",
                "file": f"000{i + 1}",
                "symbols": [],
                "premises": premises,
            }
        )
    proof = {"format": "trainverify-proof", "version": 1, "facts": facts, "stages": stages}
    return Bundle(circle(), proof, {}, [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}])


def refused(plan: dict[str, Any], shown: str) -> None:
    """By the checker with this circle, and by the tools, which name the same rendezvous."""
    with pytest.raises(Rejected, match=rf"^obligation 14 .*: a value rests on itself: .*{shown}"):
        check_acyclic(read_plan(dump(plan)))
    with pytest.raises(FormatError, match="a value rests on itself"):
        loads(dump(plan))


def accepted(plan: dict[str, Any]) -> None:
    check_acyclic(read_plan(dump(plan)))
    loads(dump(plan))


def test_two_rendezvous_that_feed_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their definitions have no solution but x = 0; from that 5 x = 2 x follows, and solvers say so."""
    z3 = pytest.importorskip("z3")
    bundle = circular()
    with monkeypatch.context() as patch:
        patch.setattr("checker.kernel.check_acyclic", lambda plan: None)
        files = forged(bundle).examine().files
    for text in files.values():
        solver = z3.Solver()
        solver.from_string(text.decode())
        assert solver.check() == z3.unsat
    with pytest.raises(Rejected, match=r"^obligation 14 .*: a value rests on itself: .*rendezvous [12]"):
        bundle.examine()
    refused(bundle.plan, "rendezvous 1")


def test_a_circle_is_shown_with_classes_and_ops_and_a_long_one_is_cut() -> None:
    """Whoever reads the message finds the ops in the plan file; a circle of a whole model is no message."""
    for length, dots in ((7, False), (8, True), (20, True)):
        chain = [op(f"%{i + 1}", "negate", [f"%{i}"], "f32[3]") for i in range(length)]
        first = [meet("%0", "x", 1), *chain, meet("%80", f"%{length}", 2)]
        with pytest.raises(Rejected) as found:
            check_acyclic(read_plan(dump(five_is_two(first, [meet("%0", "x", 2), meet("%1", "%0", 1)]))))
        shown = str(found.value).split(": ", 2)[2]
        nodes = shown.removesuffix(" ...").split(" <- ")
        assert len(nodes) == 12 and shown.endswith(" ...") == dots
        assert {"rendezvous 1 0", *(f"c0:%{i}" for i in range(8))} <= set(nodes)


def test_the_same_rendezvous_in_one_order_are_accepted() -> None:
    accepted(five_is_two(*[[meet("%0", "x", 1), meet("%1", "%0", 2)]] * 2))


def test_other_orders_are_accepted_where_nothing_rests_on_itself() -> None:
    """Who waits for whom is a matter of schedules; these values are all defined."""
    accepted(five_is_two([meet("%0", "x", 1), meet("%1", "x", 2)], [meet("%0", "x", 2), meet("%1", "x", 1)]))


def test_the_circle_may_be_longer() -> None:
    grown = op("%1", "add", ["%0", "x"], "f32[3]")
    refused(
        five_is_two(
            [meet("%0", "x", 1), grown, meet("%2", "%1", 2), meet("%3", "x", 3)],
            [
                meet("%0", "x", 2),
                meet("%1", "%0", 3),
                op("%2", "add", ["%1", "x"], "f32[3]"),
                meet("%3", "%2", 1),
            ],
        ),
        "rendezvous",
    )


# Functions --------------------------------------------------------------------------------------------------


def function(ops: list[Any], value: str, inputs: Any = (["a", "f32[3]"],)) -> dict[str, Any]:
    """One that the specification does nothing in."""
    body = program(list(inputs), ops, [["r", value]])
    return {
        "specification": program(list(inputs), [], [["r", inputs[0][0]]]),
        "classes": {"c0": body, "c1": body},
    }


def call(result: str, operand: str, name: str = "f0", instance: int = 0) -> Any:
    return [[result], "call", [operand], name, instance]


def test_a_circle_through_a_call_is_refused() -> None:
    """The rendezvous inside the function joins the classes as one outside does."""
    inner = {"f0": function([meet("%0", "a", 1)], "%0")}
    refused(
        five_is_two(
            [call("%0", "x"), meet("%1", "%0", 2)], [meet("%0", "x", 2), call("%1", "%0")], functions=inner
        ),
        "call f0 0",
    )
    accepted(
        five_is_two(
            [call("%0", "x"), meet("%1", "%0", 2)], [call("%0", "x"), meet("%1", "%0", 2)], functions=inner
        )
    )


def test_a_function_in_which_classes_do_not_meet_joins_nothing() -> None:
    own = {"f0": function([op("%0", "negate", ["a"], "f32[3]")], "%0")}
    accepted(
        five_is_two(
            [call("%0", "x"), meet("%1", "%0", 2)], [meet("%0", "x", 2), call("%1", "%0")], functions=own
        )
    )


def test_a_circle_between_two_calls_is_refused() -> None:
    inner = {"f0": function([meet("%0", "a", 1)], "%0")}
    both = [[call("%0", "x", instance=i), call("%1", "%0", instance=1 - i)] for i in range(2)]
    refused(five_is_two(*both, functions=inner), "call f0 [01]")
    accepted(five_is_two(both[0], both[0], functions=inner))


def test_what_passes_through_a_function_is_its_operand() -> None:
    """A result that is an input rests on the operand of its own class only."""
    handed = {"f0": function([meet("%0", "a", 1)], "a")}
    accepted(
        five_is_two(
            [call("%0", "x"), meet("%1", "%0", 2)], [meet("%0", "x", 2), call("%1", "%0")], functions=handed
        )
    )
    refused(
        five_is_two(
            [meet("%1", "x", 2), call("%2", "%1"), meet("%3", "%2", 3)],
            [meet("%1", "x", 3), call("%2", "%1"), meet("%3", "%2", 2)],
            functions=handed,
        ),
        "call f0 0",
    )


def test_a_circle_inside_a_function_is_refused() -> None:
    plan = five_is_two([call("%0", "x")], [call("%0", "x")], functions={"f0": function([], "a")})
    for cls, ops in (
        ("c0", [meet("%0", "a", 1), meet("%1", "%0", 2)]),
        ("c1", [meet("%0", "a", 2), meet("%1", "%0", 1)]),
    ):
        plan["functions"]["f0"]["classes"][cls] = program([["a", "f32[3]"]], ops, [["r", "%1"]])
    refused(plan, "rendezvous [12]")
    with pytest.raises(Rejected, match="at function f0: a value rests on itself"):
        check_acyclic(read_plan(dump(plan)))


def test_results_of_one_call_rest_on_inputs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results, one made of each operand: what the first rests on is not asked of the second."""

    def made(second: str) -> dict[str, Any]:
        inputs = [["a", "f32[3]"], ["b", "f32[3]"]]
        body = program(inputs, [meet("%0", "a", 1), meet("%1", second, 2)], [["r", "%0"], ["q", "%1"]])
        functions = {
            "f0": {
                "specification": program(inputs, [], [["r", "a"], ["q", "b"]]),
                "classes": {"c0": body, "c1": body},
            }
        }
        first = [[["%0", "%1"], "call", ["x", "x"], "f0", 0], meet("%2", "%0", 3)]
        late = [meet("%2", "x", 3), [["%0", "%1"], "call", ["x", "%2"], "f0", 0]]
        plan = five_is_two(first, late, functions=functions)
        plan["specification"]["ops"][0] = [["%50", "%51"], "call", ["x", "x"], "f0", 0]
        return json.loads(json.dumps(plan))  # type: ignore[no-any-return]

    accepted(made("b"))
    plan = made("b")
    plan["functions"]["f0"]["classes"]["c0"]["ops"][0][2] = ["b"]
    accepted(plan)
    plan["functions"]["f0"]["classes"]["c1"]["ops"][0][2] = ["b"]
    refused(plan, "call f0 0")
    monkeypatch.setattr(
        acyclic, "MAX_BITS", 4 * len(acyclic._ordered(read_plan(dump(plan)).functions["f0"], {}, ""))
    )
    refused(plan, "call f0 0")
    monkeypatch.setattr(acyclic, "MAX_BITS", acyclic.MAX_BITS - 1)
    with pytest.raises(Undecided, match="too many inputs"):
        check_acyclic(read_plan(dump(plan)))


def test_a_result_does_not_rest_on_an_operand_that_it_is_not_made_of() -> None:
    """c0 hands in what it has of a rendezvous that waits for the result of c1, made of the other operand."""
    inputs = [["a", "f32[3]"], ["b", "f32[3]"]]
    body = program(inputs, [op("%0", "negate", ["b"], "f32[3]")], [["r", "%0"]])
    functions = {
        "f0": {
            "specification": program(inputs, [], [["r", "b"]]),
            "classes": {"c0": body, "c1": body},
        }
    }

    def plan(used: str) -> dict[str, Any]:
        body["ops"][0][2] = [used]
        early = [meet("%2", "x", 3), [["%0"], "call", ["%2", "x"], "f0", 0]]
        late = [[["%0"], "call", ["x", "x"], "f0", 0], meet("%2", "%0", 3)]
        made = five_is_two(early, late, functions=functions)
        made["specification"]["ops"][0] = [["%50"], "call", ["x", "x"], "f0", 0]
        return json.loads(json.dumps(made))  # type: ignore[no-any-return]

    accepted(plan("b"))
    accepted(plan("a"))  # the operand of its own class, which is x in c1


# Groups -----------------------------------------------------------------------------------------------------


def on_a_grid(group: str) -> dict[str, Any]:
    """Four classes, of 2 x 2 ranks; c0 and c3 use two rendezvous in other orders."""
    groups = {
        "rows": {"axes": ["tp"], "ranks": [[0, 1], [2, 3]]},
        "columns": {"axes": ["dp"], "ranks": [[0, 2], [1, 3]]},
        "all": {"axes": ["dp", "tp"], "ranks": [[0, 1, 2, 3]]},
        "odd": {"axes": [], "ranks": [[0, 1], [3, 2]]},
        "no": {"axes": ["tp"], "ranks": [[1, 0], [2, 3]]},
    }
    orders = [(1, 2), (1, 2), (2, 1), (2, 1)]
    classes = [
        {
            "name": f"c{i}",
            "box": {"dp": [i // 2, i // 2 + 1], "tp": [i % 2, i % 2 + 1]},
            "program": program([X], [meet("%0", "x", a, group), meet("%1", "%0", b, group)], [["y", "%1"]]),
        }
        for i, (a, b) in enumerate(orders)
    ]
    return plan_of([["dp", 2], ["tp", 2]], program([X], [], []), classes, [], [], groups)


def test_only_classes_that_a_group_connects_meet() -> None:
    """Rows are two and two, each with an order of its own; a group without factorisation connects all."""
    accepted(on_a_grid("rows"))
    for group in ("columns", "all"):
        refused(on_a_grid(group), "rendezvous [12] 0|rendezvous [12] [0-9]")
    with pytest.raises(Rejected, match="a value rests on itself"):
        check_acyclic(read_plan(dump(on_a_grid("odd"))))
    plan = read_plan(dump(on_a_grid("rows")))
    sets = {
        g: {frozenset(c for c in plan.classes if found[c] == n) for n in found.values()}
        for g in plan.groups
        for found in [joined(plan, plan.groups[g])]
    }
    two, whole = {frozenset(("c0", "c1")), frozenset(("c2", "c3"))}, {frozenset(plan.classes)}
    assert sets == {
        "rows": two,
        "columns": {frozenset(("c0", "c2")), frozenset(("c1", "c3"))},
        "all": whole,
        "odd": whole,
        "no": whole,
    }


def test_boxes_that_overlap_outside_a_group_are_connected_step_by_step() -> None:
    """c0 shares a line with c1, c1 with c2: all three meet."""
    boxes = [
        {"a": [0, 2], "b": [0, 1]},
        {"a": [0, 1], "b": [1, 3]},
        {"a": [1, 2], "b": [1, 2]},
        {"a": [1, 2], "b": [2, 3]},
    ]
    classes = [{"name": f"c{i}", "box": box, "program": program([], [], [])} for i, box in enumerate(boxes)]
    for axes, ranks, want in ((["b"], [[0, 1, 2], [3, 4, 5]], 1), (["a"], [[0, 3], [1, 4], [2, 5]], 2)):
        plan = read_plan(
            dump(
                plan_of(
                    [["a", 2], ["b", 3]],
                    program([], [], []),
                    classes,
                    [],
                    [],
                    {"g": {"axes": axes, "ranks": ranks}},
                )
            )
        )
        found = joined(plan, plan.groups["g"])
        assert len(set(found.values())) == want, found


# Infinities -------------------------------------------------------------------------------------------------


def infinite(*values: str, kind: str = "all_gather", seqs: tuple[int, int] = (1, 1)) -> Bundle:
    """Each class brings an infinite literal to a rendezvous; `y = 2 x + (e - e)` with `e` the exponential of
    what came from the last class. Where that is exp(inf), IEEE gives NaN, and the reals 2 x."""

    def ops(value: str, seq: int) -> list[Any]:
        shared = [op("%0", "constant", [], "f32[3]", value=value)]
        if kind == "all_gather":
            shared += [
                op("%1", "all_gather", ["%0"], "f32[6]", group="g", dim=0, seq=seq),
                op("%2", "slice", ["%1"], "f32[3]", start=[3], stride=[1]),
            ]
        else:
            shared += [op("%2", "all_reduce", ["%0"], "f32[3]", group="g", kind=kind, seq=seq)]
        return [
            *shared,
            op("%3", "exponential", ["%2"], "f32[3]"),
            op("%4", "subtract", ["%3", "%3"], "f32[3]"),
        ]

    plan = five_is_two(*(ops(v, s) for v, s in zip(values, seqs, strict=True)))
    return Bundle(
        plan,
        {"format": "trainverify-proof", "version": 1, "facts": [], "stages": []},
        {},
        [{"spec": "y", "plan": "y", "verdict": "UNKNOWN", "reason": "not tried"}],
    )


def test_both_signs_of_infinity_do_not_meet() -> None:
    """Whichever class stands first, the sign of the other one is not forgotten."""
    assert infinite("-inf", "-inf").examine().assumptions == ()
    met = r"^obligation 2 .* at class c1, op %1: both signs of infinity meet at rendezvous 1"
    for values in (("-inf", "inf"), ("inf", "-inf")):
        forged = infinite(*values)
        for cls in forged.plan["classes"] if values[0] == "inf" else ():
            del cls["program"]["ops"][3:5]
        with pytest.raises(Rejected, match=met):
            forged.examine()
    with pytest.raises(Rejected, match="reaches exponential"):
        infinite("1", "inf").examine()
    assert infinite("-inf", "1").examine().assumptions == ()


def test_a_row_that_ranks_mask_together() -> None:
    """Masked by both of them in every run: refused. By one alone: the other entry is finite, which
    is decided for that rank only."""
    never = infinite("-inf", "-inf", kind="max").examine().never
    assert "class c0: constants mask a whole row that" in str(never)
    noted = infinite("-inf", "1", kind="max").examine().assumptions
    assert [note.split(":")[0] for note in noted] == ["class c0"]
    with pytest.raises(Rejected, match="both signs of infinity meet"):
        infinite("-inf", "inf", kind="max").examine()
