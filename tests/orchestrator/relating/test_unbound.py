"""What is the same in all rows of a batch is related, whichever rows a rank has."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact

from ..oracle import Numbers
from ..plans import Write, pair, unproved
from .kit import formulas, related

DP, GRID = {"dp": 2}, {"dp": 2, "tp": 2}
ROWS, WHOLE = {"dp": Shard(0)}, {"dp": Replicate()}


def counted(b: ProgramBuilder, rows: int, length: int, start: int = 1) -> Value:
    """``F.pad((positions.expand(rows, length)[:, 1:] * 0 + 1).cumsum(-1), (1, 0))``: places in a row."""
    ones = b.broadcast(b.iota(f"i64[{length - 1}]", 0), (rows, length - 1), (1,)) * 0 + 1
    square = f"i64[{length - 1},{length - 1}]"
    upto = b.convert(b.compare(b.iota(square, 0), b.iota(square, 1), "LE"), "i64")
    return b.pad(b.dot(ones, upto, ([1], [0])), (0, start), (0, 1 - start))


def causal(b: ProgramBuilder, rows: int, length: int, direction: str = "LE", start: int = 1) -> Value:
    """``c[:, None, None, :] <= c[:, None, :, None]``, which a library makes for each row of the batch."""
    c, shape = counted(b, rows, length, start), (rows, 1, length, length)
    keys = b.broadcast(c.reshape(rows, 1, 1, length), shape, (0, 1, 2, 3))
    queries = b.broadcast(c.reshape(rows, 1, length, 1), shape, (0, 1, 2, 3))
    return b.compare(keys, queries, direction)


def attention(rows: int, heads: int = 2, length: int = 6, direction: str = "LE", start: int = 1) -> Write:
    def write(b: ProgramBuilder) -> None:
        s, shape = b.input("s", f"f32[{rows},{heads},{length},{length}]"), f"f32[{rows},1,{length},{length}]"
        mask = causal(b, rows, length, direction, start)
        added = b.select(mask, b.constant(0, shape), b.constant(-9, shape)).reshape(rows, length, length)
        e = b.exponential(s + b.broadcast(added, s.shape, (0, 2, 3)))
        b.output("p", e / b.broadcast(e.sum(3), s.shape, (0, 1, 2)))

    return write


def test_a_mask_made_of_positions_for_each_row_is_the_one_of_the_whole_batch() -> None:
    assert unproved(pair(DP, attention(4), attention(2), {"s": ROWS}, {"p": ROWS})) == []


def test_it_is_with_heads_and_rows_sharded_too() -> None:
    both = {"dp": Shard(0), "tp": Shard(1)}
    assert unproved(pair(GRID, attention(4, heads=4), attention(2), {"s": both}, {"p": both})) == []


@pytest.mark.parametrize(
    "wrong", [{"direction": "LT"}, {"direction": "GE"}, {"start": 0}], ids=["strict", "reversed", "shifted"]
)
def test_another_mask_is_not(wrong: dict[str, str | int]) -> None:
    plan = attention(2, **wrong)  # type: ignore[arg-type]
    assert unproved(pair(DP, attention(4), plan, {"s": ROWS}, {"p": ROWS}))


def pooled(rows: int, *, twice: bool = False) -> Write:
    """The backward pass of a mean over rows that ranks share: one gradient for all rows of an example, made
    large, flattened and multiplied by weights, and then by what each row has."""

    def write(b: ProgramBuilder) -> None:
        x, g, w = b.input("x", f"f32[2,{rows},4]"), b.input("g", "f32[2,3]"), b.input("w", "f32[3,4]")
        large = b.broadcast(b.concatenate([g, g], 0) if twice else g, (4 if twice else 2, rows, 3), (0, 2))
        large = b.slice(large, (1, 0, 0), (2, rows, 3)) if twice else large
        back = b.dot(large.reshape(2 * rows, 3), w, ([1], [0])).reshape(2, rows, 4)
        b.output("y", back * x)

    return write


POOLED = {"x": {"dp": Shard(1)}, "g": WHOLE, "w": WHOLE}


def test_a_gradient_that_all_rows_of_an_example_have_lies_as_the_rows_do() -> None:
    plan = pair(DP, pooled(4), pooled(2), POOLED, {"y": {"dp": Shard(1)}})
    assert unproved(plan, in_digits=True) == []
    assert related(plan)[1].unbound.passed_over, "so a proof is tried that way, too"
    assert unproved(plan), "not at first: who has all rows, as packed rows are, needs them where they are"


def test_another_examples_gradient_is_not() -> None:
    plan = pair(DP, pooled(4), pooled(2, twice=True), POOLED, {"y": {"dp": Shard(1)}})
    assert unproved(plan) and unproved(plan, in_digits=True)


def test_what_repeats_in_no_digits_is_tried_once() -> None:
    plan = pair(DP, attention(4), attention(2), {"s": ROWS}, {"p": ROWS})
    assert not related(plan)[1].unbound.passed_over


def images(rows: int, *, last: bool = False, shifted: bool = False) -> Write:
    """A class token before the patches of each image, positions added to all, and attention over them."""

    def write(b: ProgramBuilder) -> None:
        x, p, w = b.input("x", f"f32[{rows},4,3]"), b.input("p", "f32[5,3]"), b.input("w", "f32[3,3]")
        token = b.broadcast(b.input("c", "f32[1,1,3]").reshape(3), (rows, 1, 3), (2,))
        h = b.concatenate([x, token] if last else [token, x], 1)
        places = b.concatenate([b.slice(p, (1, 0), (4, 3)), b.slice(p, (0, 0), (1, 3))], 0) if shifted else p
        h = h + b.broadcast(places, (rows, 5, 3), (1, 2))
        q = b.dot(h.reshape(rows * 5, 3), w, ([1], [0])).reshape(rows, 5, 3)
        s = b.exponential(b.dot(q, h, ([2], [2]), ([0], [0])))
        b.output("y", b.dot(s, h, ([2], [1]), ([0], [0])))

    return write


IMAGES = {"x": ROWS, "c": WHOLE, "p": WHOLE, "w": WHOLE}


def test_the_token_before_the_patches_is_the_one_of_the_same_image() -> None:
    assert unproved(pair(DP, images(4), images(2), IMAGES, {"y": ROWS})) == []


@pytest.mark.parametrize("wrong", [{"last": True}, {"shifted": True}], ids=["token last", "other places"])
def test_a_token_at_another_place_is_not(wrong: dict[str, bool]) -> None:
    assert unproved(pair(DP, images(4), images(2, **wrong), IMAGES, {"y": ROWS}))


def rotated(rows: int, *, exchanged: bool = False) -> Write:
    """Rotary embedding as libraries write it: all angles twice, beside each other, and halves exchanged."""

    def write(b: ProgramBuilder) -> None:
        x, f = b.input("x", f"f32[{rows},6,8]"), b.input("f", "f32[4]")
        places = b.convert(b.broadcast(b.iota("i64[6]", 0), (6, 4), (0,)), "f32")
        angles = places * b.broadcast(f, (6, 4), (1,))
        both = b.concatenate([angles, angles], 1)
        cosine, sine = (b.broadcast(v, x.shape, (1, 2)) for v in (b.cosine(both), b.sine(both)))
        low, high = b.slice(x, (0, 0, 0), (rows, 6, 4)), b.slice(x, (0, 0, 4), (rows, 6, 4))
        turned = b.concatenate([high, -low] if exchanged else [-high, low], 2)
        y = cosine * x + turned * sine
        b.output("y", b.dot(y, y, ([2], [2]), ([0], [0])))

    return write


ROTATED = {"x": ROWS, "f": WHOLE}


def test_angles_that_stand_twice_are_read_where_the_other_operand_is() -> None:
    assert unproved(pair(DP, rotated(4), rotated(2), ROTATED, {"y": ROWS})) == []


def test_halves_exchanged_the_other_way_are_not() -> None:
    plan = pair(DP, rotated(4), rotated(2, exchanged=True), ROTATED, {"y": ROWS})
    assert unproved(plan)


def of_first(rows: int, *, last: bool = False, sums: bool = False) -> Write:
    """Gradients where the loss reads the first of five places: zeros at the others, through a norm."""

    def write(b: ProgramBuilder) -> None:
        g, x, w = b.input("g", f"f32[{rows},3]"), b.input("x", f"f32[{rows},5,3]"), b.input("w", "f32[3]")
        low, high = ((0, 4, 0), (0, 0, 0)) if last else ((0, 0, 0), (0, 4, 0))
        d = b.pad(g.reshape(rows, 1, 3) * (2 if sums else 1), low, high)
        y = d * b.broadcast(w, d.shape, (2,))
        y = y - b.broadcast((y * x).sum(2) / 3, d.shape, (0, 1)) * x
        flat = y.reshape(rows * 5, 3)
        for name, value in {"bias": d.sum(0, 1), "weight": flat.T @ x.reshape(rows * 5, 3)}.items():
            b.output(name, b.all_reduce(value, "dp") / 2 if sums else value)

    return write


FIRST = {"g": ROWS, "x": ROWS, "w": WHOLE}


def test_gradients_of_one_place_are_those_of_the_whole_batch() -> None:
    """Twice as large on each rank, as means over half of the batch are; of zeros nobody can tell."""
    plan = pair(DP, of_first(4), of_first(2, sums=True), FIRST, {"bias": WHOLE, "weight": WHOLE})
    assert unproved(plan) == []


def test_gradients_of_another_place_are_not() -> None:
    wrong = of_first(2, last=True, sums=True)
    assert len(unproved(pair(DP, of_first(4), wrong, FIRST, {"bias": WHOLE, "weight": WHOLE}))) == 1


def squares(exchanged: bool = False) -> Write:
    """Moments of a table whose first row is also a gradient of its own."""

    def write(b: ProgramBuilder) -> None:
        u, v = b.input("u", "f32[1,3]"), b.input("v", "f32[4,3]")
        both = b.concatenate([v, u] if exchanged else [u, v], 0)
        b.output("token", u * u)
        b.output("table", both * both + b.input("m", "f32[5,3]"))

    return write


@pytest.mark.parametrize("exchanged", [False, True])
def test_what_another_op_computes_in_part_is_read_there_and_the_rest_here(exchanged: bool) -> None:
    given = {"u": WHOLE, "v": WHOLE, "m": WHOLE}
    plan = pair(DP, squares(), squares(exchanged), given, {"token": WHOLE, "table": WHOLE})
    assert len(unproved(plan)) == exchanged


def repeats(plan: Plan) -> list[Fact]:
    """What the specification is read by instead of itself, each checked on numbers."""
    knowledge, _ = related(plan)
    numbers = Numbers(plan)
    found = [knowledge.facts[n] for ref in knowledge.by_lhs if knowledge.repeats(ref)
             for n in knowledge.by_lhs[ref]]  # fmt: skip
    assert [numbers.failure(f) for f in found] == [None] * len(found)
    return found


def rowwise(b: ProgramBuilder, x: Value, w: Value) -> Value:
    return b.exponential(b.broadcast(w, x.shape, (1,))) + x


def test_the_specification_is_read_in_its_first_row_where_all_are_alike() -> None:
    given = {"x": ("f32[8,3]", "f32[4,3]", ROWS), "w": ("f32[3]", "f32[3]", WHOLE)}
    (fact,) = repeats(formulas(DP, rowwise, rowwise, given))
    assert str(fact) == "s:%1[z0, z1] = s:%1[0, z1] for z0 in [0,8), z1 in [0,3)"


def test_what_differs_from_row_to_row_says_nothing_of_itself() -> None:
    given = {"x": ("f32[8,3]", "f32[4,3]", ROWS), "w": ("f32[8,3]", "f32[4,3]", ROWS)}
    assert repeats(formulas(DP, lambda b, x, w: b.exponential(w) + x, lambda b, x, w: x + w, given)) == []


def with_class_tokens(rows: int, batches: tuple[int, int] = (0, 1)) -> Write:
    """Two batches of tokens behind one class token: all their products, and a softmax of these.

    The token's product with itself is the same in both: what the second batch makes of it is the first's.
    """

    def write(b: ProgramBuilder) -> None:
        token = b.tanh(b.input("token", "f32[3]"))
        given = [b.input(f"x{i}", f"f32[{rows},2,3]") for i in (0, 1)]
        for i, n in enumerate(batches):
            t = b.concatenate([b.broadcast(token, (rows, 1, 3), (2,)), b.tanh(given[n])], 1)
            t = b.exponential(t - b.broadcast(t.sum(2), t.shape, (0, 1)))
            scores = b.dot(t, t, batch=((0,), (0,)), contract=((2,), (2,)))
            powers = b.exponential(scores - b.broadcast(b.reduce(scores, (2,), "max"), scores.shape, (0, 1)))
            b.output(f"y{i}", powers / b.broadcast(powers.sum(2), powers.shape, (0, 1)))

    return write


@pytest.mark.parametrize(("batches", "proved"), [((0, 1), True), ((0, 0), False)])
def test_a_second_batch_with_the_first_ones_class_token(batches: tuple[int, int], proved: bool) -> None:
    inputs = {"token": WHOLE, "x0": ROWS, "x1": ROWS}
    plan = pair(DP, with_class_tokens(4), with_class_tokens(2, batches), inputs, {"y0": ROWS, "y1": ROWS})
    assert (unproved(plan) == []) is proved
