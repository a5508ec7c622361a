"""Where no edit repairs a plan, the line is told at which a tensor stops to be the one that belongs there."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.refuting.diagnose import Cause, diagnose
from orchestrator.refuting.search import search

from ..plans import pair

ROWS = {"dp": Shard(0)}


def told(plan: Plan, proved: bool = False) -> Cause:
    witness = search(plan)
    assert witness is not None
    found = diagnose(plan, witness, 30.0, lambda _plan, _outputs: proved)
    assert found is not None
    return found


def gradient(b: ProgramBuilder, rows: int) -> Value:
    """Of a linear model: a sum over rows."""
    return b.dot(b.input("x", f"f32[{rows},3]"), b.input("e", f"f32[{rows},2]"), ([0], [0]))


def rows_of(mine: object) -> int:
    return 4 if mine else 8


def test_what_reads_a_gradient_before_its_sum_is_told() -> None:
    """A norm of gradients that are reduced only afterwards: one more reduction would not help."""

    def write(b: ProgramBuilder, early: bool, mine: bool) -> None:
        g = gradient(b, rows_of(mine))
        square = b.reduce(g * g, (0, 1), "add") if early else None
        whole = b.all_reduce(g, "dp") if mine else g
        square = b.reduce(whole * whole, (0, 1), "add") if square is None else square
        b.output("clipped", whole / b.broadcast(b.sqrt(square) + 1, whole.shape))

    plan = pair({"dp": 2}, lambda b: write(b, False, False), lambda b: write(b, True, True),
                {"x": ROWS, "e": ROWS}, {"clipped": {}})  # fmt: skip
    found = told(plan)
    assert found.op.name == "multiply" and "reads `dot_general %0`" in found.what
    assert "before `all_reduce %3` over dp (" in found.what and "has summed it" in found.what


def test_a_sum_that_is_made_and_not_read_is_told() -> None:
    """The copy back forgets one tensor: its sum is there, and the gradient from before it is used."""

    def write(b: ProgramBuilder, mine: bool) -> None:
        g = gradient(b, rows_of(mine))
        whole = b.all_reduce(g, "dp") if mine else g
        b.output("kept", b.tanh(whole))
        b.output("used", b.tanh((g if mine else whole) * 3) * b.input("m", "f32[3,2]"))

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True),
                {"x": ROWS, "e": ROWS, "m": {}}, {"kept": {}, "used": {}})  # fmt: skip
    found = told(plan)
    assert found.op.name == "all_reduce"
    assert "sums `dot_general %0`" in found.what and "reads what was before the sum" in found.what


def test_a_gradient_that_lacks_a_term_is_told_where_the_other_is_read() -> None:
    """Gradients are cleared before the last microbatch: what is left is a tensor of the specification too."""

    def write(b: ProgramBuilder, mine: bool) -> None:
        terms = []
        for i in (0, 1):
            x, e = b.input(f"x{i}", f"f32[{rows_of(mine)},3]"), b.input(f"e{i}", f"f32[{rows_of(mine)},2]")
            if i or not mine:
                terms.append(b.dot(x, e, ([0], [0])))
        whole = b.all_reduce(terms[0], "dp") if mine else terms[0] + terms[1]
        b.output("after", b.input("w", "f32[3,2]") - whole)

    held = {"x0": ROWS, "x1": ROWS, "e0": ROWS, "e1": ROWS, "w": {}}
    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), held, {"after": {}})
    found = told(plan)
    assert found.op.name == "all_reduce" and "reads `dot_general %0`" in found.what
    assert "one term of the specification's `add %2`" in found.what and "expected are all" in found.what


@pytest.mark.parametrize("proved", [False, True])
def test_elements_of_another_place_are_told_where_they_are_cut_out(proved: bool) -> None:
    """Two gradients in one bucket, copied back in another order. The bucket itself is as good as any."""

    def write(b: ProgramBuilder, mine: bool) -> None:
        u, v = b.input("u", "f32[3]"), b.input("v", "f32[5]")
        gu, gv = b.tanh(u), b.tanh(v)
        if mine:
            flat = b.concatenate([gu, gv], 0)
            gv, gu = flat[0:5], flat[5:8]
        b.output("u2", u * gu)
        b.output("v2", v * gv)

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True),
                {"u": {}, "v": {}}, {"u2": {}, "v2": {}})  # fmt: skip
    found = told(plan, proved)
    assert found.op.name == "slice" and "; expected is the specification's `tanh %" in found.what
    assert found.suggestion.startswith("concatenate in the order 1, 0") is proved


def test_an_op_that_makes_something_else_of_right_operands_is_told_with_its_reader() -> None:
    def write(b: ProgramBuilder, mine: bool) -> None:
        h = b.input("x", "f32[4]") * 2
        h = b.exponential(h) if mine else b.tanh(h)
        b.output("y", h - b.input("z", "f32[4]"))

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}, "z": {}}, {"y": {}})
    found = told(plan)
    assert found.op.name == "exponential"
    assert "its operands are the specification's, its result is not, where `subtract %3` (" in found.what


def masked(b: ProgramBuilder, mine: bool, wrong: bool) -> None:
    """Scores of the same document, or, ``wrong``, of all earlier ones; else another function of them."""
    ids, scores = b.input("ids", "i64[6]"), b.input("scores", "f32[6,6]")
    rows, columns = b.broadcast(ids, (6, 6), (0,)), b.broadcast(ids, (6, 6), (1,))
    earlier = b.compare(rows, columns, "GE")
    same = b.logical_and(earlier, b.compare(rows, columns, "LE"))
    kept = b.select(earlier if wrong else same, scores, b.constant(0, "f32[6,6]"))
    b.output("y", b.tanh(kept) if mine and not wrong else b.exponential(kept))


@pytest.mark.parametrize(("wrong", "op"), [(True, "compare"), (False, "tanh")])
def test_a_mask_that_is_another_one_of_the_specification_is_told(wrong: bool, op: str) -> None:
    """Each of its truth values stands in the specification, for something else: not what an op lacks is told,
    but what the mask should be. A mask that is right is no cause of what comes after it."""
    plan = pair({"dp": 2}, lambda b: masked(b, False, False), lambda b: masked(b, True, wrong),
                {"ids": {}, "scores": {}}, {"y": {}}, ranges={"ids": (0, 3)})  # fmt: skip
    found = told(plan)
    assert found.op.name == op
    assert ("has not the values of the specification's `and %4`" in found.what) is wrong


def test_a_piece_of_a_tensor_that_is_another_piece_of_it_is_told_where_it_is_cut_out() -> None:
    """Gate and up lie one behind the other, and the ranks take them for interleaved: each value is there."""

    def write(b: ProgramBuilder, mine: bool) -> None:
        both = b.dot(b.input("x", "f32[4,3]"), b.input("w", "f32[3,6]"), ([1], [0]))
        if mine:
            pairs = b.reshape(both, (4, 3, 2))
            gate, up = (b.reshape(pairs[:, :, i : i + 1], (4, 3)) for i in (0, 1))
        else:
            gate, up = both[:, 0:3], both[:, 3:6]
        b.output("y", b.logistic(gate) * up)

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}, "w": {}}, {"y": {}})
    found = told(plan)
    assert found.op.name == "slice" and found.op.out == "%2"
    assert "expected is the specification's `slice %1`" in found.what and "`logistic %6`" in found.what


def test_row_numbers_count_from_where_a_shard_begins() -> None:
    """Rows of foreign tokens are not masked: their numbers in the shard are right, the rows are not."""

    def write(b: ProgramBuilder, mine: bool) -> None:
        ids, table = b.input("ids", "i64[4]"), b.input("table", f"f32[{4 if mine else 8},3]")
        if not mine:
            b.output("y", b.tanh(b.gather(table, ids, 0)))
            return
        own = ids - b.constant(b.axis_index("tp").scale(4), ids.type)
        inside = b.logical_and(b.compare(own, 0, "GE"), b.compare(own, 4, "LT"))
        row = b.select(inside, own, b.constant(0, "i64[4]"))
        b.output("y", b.tanh(b.all_reduce(b.gather(table, row, 0), "tp")))

    plan = pair({"tp": 2}, lambda b: write(b, False), lambda b: write(b, True),
                {"ids": {}, "table": {"tp": Shard(0)}}, {"y": {}}, ranges={"ids": (0, 8)})  # fmt: skip
    found = told(plan)
    assert found.op.name == "gather" and "its operands are the specification's" in found.what
