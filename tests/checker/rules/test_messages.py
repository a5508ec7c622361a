"""Messages (obligation 19): every forged way in which the two ends do not fit is refused, with its reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed, Rejected
from checker.reading.plan import read_plan
from checker.rules.acyclic import check_acyclic
from checker.rules.infinite import infinities
from checker.rules.messages import check_messages

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import at, dump, forged, op, piece, plan_of, program, refuses, relation, staged, z

FIRST, LAST = "classes.0.program.ops", "classes.1.program.ops"


def test_a_proof_through_a_message_is_accepted() -> None:
    assert [o.title for o in staged().examine().stages] == ["received and stacked"]


@pytest.mark.parametrize(
    ("path", "value", "where", "reason"),
    [
        (f"{FIRST}.2.4.to", [{"mb": 1}, 0], "class c0, send %2", "class c0 has no recv"),
        (f"{FIRST}.2.4.to", [{"mb": 1}, 2], "class c0, send %2", "there is no such rank"),
        (f"{FIRST}.2.4.to", [{"mb": 1}, -1], "class c0, send %2", "there is no such rank"),
        (f"{FIRST}.2.4.to", [{"mb": -1, "": 1}, 1], "class c0, send %2", "a message goes to another time"),
        (f"{FIRST}.2.4.to", [0, 1], "class c0, send %2", "a message goes to another time"),
        (f"{FIRST}.2.4.seq", 5, "class c0, send %2", "class c1 has no recv"),
        (f"{FIRST}.2", op("%2", "negate", ["%1"], "f32[2]"), "class c1, recv %0", "class c0 has no send"),
        (f"{LAST}.0.4.from", [{"mb": 1}, 1], "class c0, send %2", "the recv of class c1 names another rank"),
        (f"{LAST}.0.4.from", [{"mb": -1, "": 1}, 0], "class c0, send %2", "names another rank"),
        (f"{LAST}.0.4.seq", 5, "class c0, send %2", "class c1 has no recv"),
        (
            f"{LAST}.0",
            op("%0", "constant", [], "f32[2]", value="0"),
            "class c0, send %2",
            "class c1 has no recv",
        ),
        (f"{LAST}.0.3", "bf16[2]", "class c0, send %2", "class c1 has no recv of this number and type"),
    ],
)
def test_ends_that_do_not_fit(path: str, value: Any, where: str, reason: str) -> None:
    bundle = staged()
    at(path, value)(bundle.plan)
    if path == f"{LAST}.0.3":
        at(f"{LAST}.1.3", "bf16[4]")(bundle.plan)
    with refuses(19, reason, where):
        forged(bundle).examine()


def rank_programs(*programs: list[Any], functions: Any = None, n: int = 3) -> dict[str, Any]:
    """The claim that 5 x = 2 x on classes with these ops, one rank each."""
    shape = f"f32[{n}]"

    def scaled(ops: list[Any], factor: str) -> Any:
        last = [
            op("%90", "constant", [], shape, value=factor),
            op("%91", "multiply", ["x", "%90"], shape),
        ]
        return program([["x", shape]], [*ops, *last], [["y", "%91"]])

    classes = [
        {"name": f"c{r}", "box": {"pp": [r, r + 1]}, "program": scaled(ops, "2")}
        for r, ops in enumerate(programs)
    ]
    pieces = [piece(c["name"], [n], [z(0)], [z(0)]) for c in classes]
    plan = plan_of(
        [["pp", len(programs)]],
        scaled([], "5"),
        classes,
        [relation("x", "x", *pieces)],
        [relation("y", "y", *pieces)],
        given=["x"],
    )
    return plan | {"version": 2}


def send(result: str, value: str, seq: int, to: Any) -> Any:
    return op(result, "send", [value], "f32[3]", seq=seq, to=[to])


def recv(result: str, seq: int, source: Any) -> Any:
    return op(result, "recv", [], "f32[3]", seq=seq, **{"from": [source]})


def add(result: str, a: str, b: str) -> Any:
    return op(result, "add", [a, b], "f32[3]")


def test_a_circle_through_messages() -> None:
    """The definitions would say a = a + x, so x = 0, and 5 x = 2 x."""
    plan = read_plan(
        dump(
            rank_programs(
                [recv("%0", 1, 1), add("%1", "%0", "x"), send("%2", "%1", 2, 1)],
                [recv("%0", 2, 0), send("%1", "%0", 1, 0)],
            )
        )
    )
    check_messages(plan)
    with refuses(14, "a value rests on itself"):
        check_acyclic(plan)


def test_a_message_to_oneself_that_rests_on_itself() -> None:
    plan = read_plan(dump(rank_programs([recv("%0", 1, 0), add("%1", "%0", "x"), send("%2", "%1", 1, 0)])))
    check_messages(plan)
    with refuses(14, "a value rests on itself"):
        check_acyclic(plan)


def test_a_circle_through_a_message_and_a_rendezvous() -> None:
    def summed(value: str) -> Any:
        return op("%5", "all_reduce", [value], "f32[3]", group="g", kind="add", seq=9)

    document = rank_programs(
        [recv("%0", 1, 1), summed("%0")],
        [summed("x"), send("%6", "%5", 1, 0)],
    )
    document["groups"] = {"g": {"axes": ["pp"], "ranks": [[0, 1]]}}
    plan = read_plan(dump(document))
    check_messages(plan)
    with refuses(14, "a value rests on itself"):
        check_acyclic(plan)


def test_there_and_back_is_no_circle() -> None:
    plan = read_plan(
        dump(
            rank_programs(
                [send("%0", "x", 1, 1), recv("%1", 2, 1)],
                [recv("%0", 1, 0), send("%1", "%0", 2, 0)],
            )
        )
    )
    check_messages(plan)
    check_acyclic(plan)


def test_one_number_for_every_hop_is_no_circle() -> None:
    """Stage k sends 0 to stage k + 1: what a class receives does not rest on what it sends on."""
    plan = read_plan(
        dump(
            rank_programs(
                [send("%0", "x", 0, 1)],
                [recv("%0", 0, 0), send("%1", "%0", 0, 2)],
                [recv("%0", 0, 1)],
            )
        )
    )
    check_messages(plan)
    check_acyclic(plan)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ([send("%0", "x", 1, 1), send("%1", "x", 1, 1)], [recv("%0", 1, 0)]),
        ([send("%0", "x", 1, 1)], [recv("%0", 1, 0), recv("%1", 1, 0)]),
    ],
    ids=["sent twice", "received twice"],
)
def test_doubled_messages(first: list[Any], last: list[Any]) -> None:
    with pytest.raises(Malformed, match="its seq occurs twice"):
        read_plan(dump(rank_programs(first, last)))


def test_a_message_that_nobody_receives() -> None:
    plan = read_plan(dump(rank_programs([send("%0", "x", 7, 1)], [])))
    with refuses(19, "class c1 has no recv", "class c0, send %0"):
        check_messages(plan)


def test_two_that_send_to_one() -> None:
    """Ranks 0 and 1 both mean rank 2; it means rank 0."""
    plan = read_plan(
        dump(rank_programs([send("%0", "x", 1, 2)], [send("%0", "x", 1, 2)], [recv("%0", 1, 0)]))
    )
    with refuses(19, "the recv of class c2 names another rank", "class c1, send %0"):
        check_messages(plan)


def test_one_that_sends_to_two() -> None:
    plan = read_plan(dump(rank_programs([send("%0", "x", 1, 1)], [recv("%0", 1, 0)], [recv("%0", 1, 0)])))
    with refuses(19, "the send of class c0 names another rank", "class c2, recv %0"):
        check_messages(plan)


def test_half_of_a_class_receives_what_nobody_sends() -> None:
    """A form that leaves the sender's box at some ranks of the receiver."""
    document = rank_programs([send("%0", "x", 1, {"pp": 1, "": 1})], [recv("%0", 1, {"pp": 1, "": -1})])
    document["mesh"] = [["pp", 3]]
    document["classes"][1]["box"] = {"pp": [1, 3]}
    plan = read_plan(dump(document))
    with refuses(19, "class c1 has no send", "class c1, recv %0"):
        check_messages(plan)


def infinite(value: str) -> Any:
    return op("%7", "constant", [], "f32[3]", value=value)


def test_infinities_pass_through_messages() -> None:
    """Sent as -inf, it must not end in `log` at the receiver; both signs under one number are refused."""
    last = [recv("%0", 1, 0), op("%1", "log", ["%0"], "f32[3]")]
    plan = read_plan(dump(rank_programs([infinite("-inf"), send("%0", "%7", 1, 1)], last)))
    with refuses(2, "an infinite literal reaches log", "class c1, op %1"):
        infinities(plan)
    plan = read_plan(
        dump(
            rank_programs(
                [infinite("-inf"), send("%0", "%7", 1, 2)],
                [infinite("inf"), send("%0", "%7", 1, 3)],
                [recv("%0", 1, 0)],
                [recv("%0", 1, 1)],
            )
        )
    )
    check_messages(plan)
    with refuses(2, "both signs of infinity meet at message 1"):
        infinities(plan)


def test_functions_have_no_messages() -> None:
    body = program([["x", "f32[3]"]], [send("%0", "x", 1, 0)], [["y", "%0"]])
    document = rank_programs([[["%80"], "call", ["x"], "f", 0]])
    document["specification"]["ops"].insert(0, [["%80"], "call", ["x"], "f", 0])
    plain = program([["x", "f32[3]"]], [op("%0", "negate", ["x"], "f32[3]")], [["y", "%0"]])
    document["functions"] = {"f": {"specification": plain, "classes": {"c0": body}}}
    with refuses(19, "a function has no messages", "function f"):
        check_messages(read_plan(dump(document)))


def test_version_1_has_no_messages() -> None:
    document = rank_programs([send("%0", "x", 1, 1)], [recv("%0", 1, 0)])
    with pytest.raises(Malformed, match="version 1 has no messages"):
        read_plan(dump(document | {"version": 1}))


def test_the_specification_has_no_messages() -> None:
    document = rank_programs([])
    document["specification"]["ops"].insert(0, op("%0", "recv", [], "f32[3]", seq=0, **{"from": []}))
    with pytest.raises(Malformed, match="one form per mesh axis"):
        read_plan(dump(document))


def test_a_rejection_names_its_number() -> None:
    bundle = staged()
    at(f"{FIRST}.2.4.seq", 3)(bundle.plan)
    with pytest.raises(Rejected) as caught:
        bundle.examine()
    assert caught.value.number == 19
