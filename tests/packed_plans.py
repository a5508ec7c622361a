"""A product with weights by key, dispatched to the ranks that own the keys, gradients included; and mistakes.

The smallest plan with every op on packed rows. The specification multiplies all rows by all weights, masked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.authoring.packing import Rows
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps

IN, OUT = 3, 5
SHARDED = {"ep": Shard(0)}
Edit = Callable[[dict[str, Any]], None]


def _inputs(b: ProgramBuilder, slots: int, keys: int) -> tuple[Value, Value, Value, Value]:
    return (
        b.input("x", f"f32[{slots},{IN}]"),
        b.input("keys", f"i64[{slots}]"),
        b.input("w", f"f32[{keys},{IN},{OUT}]"),
        b.input("dy", f"f32[{slots},{OUT}]"),
    )


def dispatch(ranks: int = 2, slots: int = 4, per: int = 2) -> Plan:
    """``slots`` rows and ``per`` keys on each rank."""
    count, every = ranks * per, ranks * slots
    s, b = ProgramBuilder(), ProgramBuilder({"ep": ranks})
    x, keys, w, dy = _inputs(s, every, count)
    grid, by_key = (every, count), (((0,), (0,)))
    hot = s.convert(
        s.compare(s.broadcast(keys, grid, (0,)), s.broadcast(s.iota(f"i64[{count}]", 0), grid, (1,)), "EQ"),
        "f32",
    )
    s.output("y", s.dot(hot, s.dot(x, w, ((1,), (1,))), ((1,), (1,)), by_key))
    cube = (every, count, IN)
    s.output("dw", s.dot(s.broadcast(hot, cube, (0, 1)) * s.broadcast(x, cube, (0, 2)), dy, ((0,), (0,))))
    s.output("dx", s.dot(hot, s.dot(dy, w, ((1,), (2,))), ((1,), (1,)), by_key))
    x, keys, w, dy = _inputs(b, slots, per)
    order = Rows.sorted(b, keys, count)
    arrived = order.shipped("ep")
    grouped = arrived.regrouped()
    p, q = (grouped.regroup(arrived.ship(order.pack(v))) for v in (x, dy))
    for name, rows in (("y", grouped.dot(p, w)), ("dx", grouped.dot(q, w, 2))):
        b.output(name, order.unpack(arrived.ship_back(grouped.ungroup(rows))))
    b.output("dw", grouped.outer(p, q))
    return build_plan(
        name="dispatch",
        mesh={"ep": ranks},
        specification=s.build(),
        classes=b.build(),
        inputs=dict.fromkeys(("x", "keys", "w", "dy"), SHARDED),
        outputs=dict.fromkeys(("y", "dw", "dx"), SHARDED),
        ranges={"keys": (0, count)},
        given=["x", "keys", "dy"],
    )


def document(edit: Edit | None = None) -> bytes:
    """The small plan's file, edited."""
    found = json.loads(dumps(dispatch()))
    if edit is not None:
        edit(found)
    return json.dumps(found).encode()


def _op(plan: dict[str, Any], name: str, place: int = 0) -> list[Any]:
    """Op ``place`` of this name in the class."""
    ops = plan["classes"][0]["program"]["ops"]
    return [op for op in ops if op[1] == name][place]


def _insert(plan: dict[str, Any], before: str, *ops: list[Any]) -> None:
    program = plan["classes"][0]["program"]
    at = next(i for i, op in enumerate(program["ops"]) if op[1] == before)
    program["ops"][at:at] = [[*op, None] for op in ops]


def _named(name: str, place: int = 0) -> Callable[[dict[str, Any]], str]:
    return lambda plan: _op(plan, name, place)[0]


def _swap(name: str, at: int, other: Callable[[dict[str, Any]], str], place: int = 0) -> Edit:
    """The operand of one op is the result of another."""

    def edit(plan: dict[str, Any]) -> None:
        _op(plan, name, place)[2][at] = other(plan)

    return edit


def _second_sort(plan: dict[str, Any]) -> None:
    _insert(plan, "unpack", ["%90", "sort_rows", ["keys"], "i64[4]", {"count": 4}])
    _op(plan, "unpack")[2][1] = "%90"


def _second_regroup(plan: dict[str, Any]) -> None:
    _insert(plan, "ragged_dot", ["%90", "regroup_rows", [_op(plan, "ship_rows")[0]], "i64[8]", {}])
    _insert(plan, "ragged_dot", ["%91", "regroup", [_op(plan, "ship", 1)[0], "%90"], "f32[8,5]", {}])
    _op(plan, "ragged_outer")[2][1] = "%91"


def _on_rows(
    name: str, type_: str, attrs: dict[str, Any], *others: list[Any], ins: list[str] | None = None
) -> Edit:
    """An op on the rows that arrived; ``others`` are made before."""

    def edit(plan: dict[str, Any]) -> None:
        rows = _op(plan, "regroup")[0]
        made = [rows if v == "rows" else v for v in ins or ["rows"]]
        _insert(plan, "ragged_dot", *others, ["%90", name, made, type_, attrs])

    return edit


def _range(low: int, high: int) -> Edit:
    def edit(plan: dict[str, Any]) -> None:
        plan["ranges"]["keys"] = [low, high]

    return edit


def _no_range(plan: dict[str, Any]) -> None:
    plan["ranges"] = {}


def _computed_keys(plan: dict[str, Any]) -> None:
    _insert(plan, "sort_rows", ["%90", "abs", ["keys"], "i64[4]", {}])
    _op(plan, "sort_rows")[2][0] = "%90"


def _padded_keys(plan: dict[str, Any]) -> None:
    """The relation gives half of the keys; the others are anything."""
    relation = next(r for r in plan["inputs"] if r["plan"] == "keys")
    relation["pieces"][0]["sizes"] = [2]


def _output(name: str) -> Edit:
    def edit(plan: dict[str, Any]) -> None:
        plan["classes"][0]["program"]["outputs"].append(["extra", _op(plan, name)[0]])

    return edit


def _count(plan: dict[str, Any]) -> None:
    _op(plan, "sort_rows")[4]["count"] = 3


def two_classes(edit: Callable[[list[Any], list[Any]], None]) -> Edit:
    """Each rank has a program of its own."""

    def apart(plan: dict[str, Any]) -> None:
        plan["classes"] = [
            {
                "name": f"c{r}",
                "box": {"ep": [r, r + 1]},
                "program": json.loads(json.dumps(plan["classes"][0]["program"])),
            }
            for r in range(2)
        ]
        for side in ("inputs", "outputs"):
            for relation in plan[side]:
                relation["pieces"] = [p | {"class": f"c{r}"} for p in relation["pieces"] for r in range(2)]
        edit(*(c["program"]["ops"] for c in plan["classes"]))

    return apart


def _plain_meets_rows(first: list[Any], second: list[Any]) -> None:
    """What the first rank sends by key the second one gathers whole, and the other way round."""
    gather = ["%90", "all_gather", ["x"], "f32[8,3]", {"group": "ep", "dim": 0, "seq": 77}, None]
    for ops in (first, second):
        ops.insert(0, json.loads(json.dumps(gather)))
    ship = next(op for op in second if op[1] == "ship")
    second[0][4]["seq"], ship[4]["seq"] = ship[4]["seq"], 77


def _orders_crossed(first: list[Any], second: list[Any]) -> None:
    """Rows go by one order from the first rank, and by another one from the second."""
    for ops in (first, second):
        at = next(i for i, op in enumerate(ops) if op[1] == "ship_rows")
        ops.insert(at + 1, ["%90", "ship_rows", ops[at][2], "i64[8]", {"group": "ep", "seq": 88}, None])
    one, two = (op for op in second if op[1] == "ship_rows")
    one[4]["seq"], two[4]["seq"] = 88, one[4]["seq"]


#: What obligation 22 refuses, with the words that both readers say.
FORGED: dict[str, tuple[Edit, str]] = {
    "rows not grouped by key": (
        _swap("ragged_dot", 2, _named("ship_rows")),
        "needs an order made by sort_rows or regroup_rows",
    ),
    "rows as they arrived are called grouped": (
        _swap("ragged_dot", 0, _named("ship")),
        "is in the order %1, not in %2",
    ),
    "rows not put back before they are sent back": (
        _swap("ship_back", 0, _named("ragged_dot")),
        "is in the order %2, not in %1",
    ),
    "rows unpacked in another order than they are in": (
        _swap("unpack", 0, _named("ship")),
        "is in the order %1, not in %0",
    ),
    "unpacked by a second sort of the same keys": (_second_sort, "is in the order %0, not in %90"),
    "gradient rows grouped by a second regroup": (_second_regroup, "is in the order %90, not in %2"),
    "rows sent without being packed": (_swap("ship", 0, lambda plan: "x"), "x is not packed, not in %0"),
    "packed twice": (_swap("pack", 0, _named("pack"), 1), "which rests on an order of rows"),
    "scores in the order of slots": (
        _on_rows(
            "multiply",
            "f32[8,3]",
            {},
            ["%91", "all_gather", ["x"], "f32[8,3]", {"group": "ep", "dim": 0, "seq": 77}],
            ins=["rows", "%91"],
        ),
        "multiply %90 does not act on each row by itself",
    ),
    "numbers of rows": (
        _on_rows("add", "f32[8,3]", {}, ["%91", "iota", [], "f32[8,3]", {"dim": 0}], ins=["rows", "%91"]),
        "add %90 does not act on each row by itself",
    ),
    "rows added up": (
        _on_rows("reduce", "f32[3]", {"dims": [0], "kind": "add"}),
        "reduce %90 does not act on each row",
    ),
    "rows turned": (
        _on_rows("transpose", "f32[3,8]", {"perm": [1, 0]}),
        "transpose %90 does not act on each row",
    ),
    "half of the rows": (
        _on_rows("slice", "f32[4,3]", {"start": [0, 0], "stride": [1, 1]}),
        "slice %90 does not act on",
    ),
    "rows twice": (
        _on_rows("concatenate", "f32[16,3]", {"dim": 0}, ins=["rows", "rows"]),
        "concatenate %90 does not act on each row by itself",
    ),
    "products by key reshaped": (
        lambda plan: _insert(
            plan, "ungroup", ["%90", "reshape", [_op(plan, "ragged_dot")[0]], "f32[8,5,1]", {}]
        ),
        "reshape %90 takes rows",
    ),
    "rows of two ranks added": (
        _on_rows("all_reduce", "f32[8,3]", {"group": "ep", "kind": "add", "seq": 77}),
        "all_reduce %90 does not act on",
    ),
    "rows of two orders added": (
        lambda plan: _insert(
            plan,
            "ragged_dot",
            ["%90", "add", [_op(plan, "regroup")[0], _op(plan, "ship")[0]], "f32[8,3]", {}],
        ),
        "add %90 joins rows of two orders",
    ),
    "rows laid along columns": (
        lambda plan: _insert(
            plan,
            "ragged_dot",
            ["%91", "reduce", [_op(plan, "regroup")[0]], "f32[8]", {"dims": [1], "kind": "add"}],
            ["%90", "broadcast_in_dim", ["%91"], "f32[8,8]", {"dims": [1]}],
        ),
        "broadcast_in_dim %90 does not act on each row by itself",
    ),
    "weights contracted over the rows": (
        _on_rows(
            "dot_general",
            "f32[3,5]",
            {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [0], "rhs_contract": [0]},
            ["%91", "all_gather", ["dy"], "f32[8,5]", {"group": "ep", "dim": 0, "seq": 77}],
            ins=["rows", "%91"],
        ),
        "dot_general %90 does not act on each row by itself",
    ),
    "rows contracted with rows": (
        _on_rows(
            "dot_general",
            "f32[8,8]",
            {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [1], "rhs_contract": [1]},
            ins=["rows", "rows"],
        ),
        "dot_general %90 does not act on each row",
    ),
    "an order read as numbers": (
        lambda plan: _insert(
            plan, "ragged_dot", ["%90", "convert", [_op(plan, "sort_rows")[0]], "f32[4]", {}]
        ),
        "convert %90 takes an order",
    ),
    "an order is an output": (_output("regroup_rows"), "an output is %2, which rests on an order of rows"),
    "packed rows are an output": (_output("ship"), "which rests on an order of rows"),
    "regrouped before they are sent": (
        _swap("regroup_rows", 0, _named("sort_rows")),
        "needs an order made by ship_rows",
    ),
    "keys that the ranks do not share evenly": (_count, "3 keys"),
    "keys above their range": (_range(0, 5), "keys of %0 are to lie in [0, 4), and keys is 0 to 4"),
    "keys below their range": (_range(-1, 4), "keys of %0 are to lie in [0, 4), and keys is -1 to 3"),
    "keys without a range": (_no_range, "keys is anything, as far as its ops show"),
    "keys whose range no op shows": (_computed_keys, "%90 is anything, as far as its ops show"),
    "keys that no relation gives": (_padded_keys, "keys is anything, as far as its ops show"),
    "rows meet a plain tensor": (
        two_classes(_plain_meets_rows),
        "rows of different orders meet, or rows and plain tensors",
    ),
    "rows of two orders meet": (
        two_classes(_orders_crossed),
        "rows of different orders meet, or rows and plain tensors",
    ),
}
