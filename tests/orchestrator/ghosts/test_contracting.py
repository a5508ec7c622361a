"""Sums: what is the same in all summands comes out, and equal sums are one letter."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value
from orchestrator.ghosts.following import Followed, Follower
from orchestrator.ghosts.scope import Hop


def followed(b: ProgramBuilder) -> tuple[Followed, Follower]:
    f = Follower(b.build(), lambda _: False, lambda _: False)
    return f.follow(), f


def row(b: ProgramBuilder, x: Value, like: Value) -> Value:
    return b.broadcast(x, like.shape, (0,))


def ghost_ops(f: Followed, hop: Hop) -> list[str]:
    ops = {op.out: op for op in f.program.ops}
    found, work = list[str](), [hop.ghost]
    while work:
        name = work.pop()
        if name in f.ghosts:
            found.append(ops[name].name)
            work += ops[name].ins
    return found


def test_a_power_of_the_row_comes_out_of_its_sum() -> None:
    b = ProgramBuilder()
    x, m = b.input("x", "f32[4,5]"), b.input("m", "f32[4]")
    b.output("y", b.exponential(x - row(b, m, x)).sum(1))
    found, f = followed(b)
    hop = found.hops[-1]
    (name,) = f.contracting.sums.named()
    assert hop.name == found.program.outputs["y"] and name in found.sums
    assert sorted(ghost_ops(found, hop)) == [
        "constant",
        "exponential",
        "exponential",
        "multiply",
        "multiply",
        "reduce",
    ]


def test_a_batch_and_its_heads_in_one_dimension_are_two() -> None:
    b = ProgramBuilder()
    x, v = b.input("x", "f32[2,3,4,4]"), b.input("v", "f32[2,3,4,5]")
    e = b.exponential(x)
    one = b.dot(b.reshape(e, (6, 4, 4)), b.reshape(v, (6, 4, 5)), batch=((0,), (0,)), contract=((2,), (1,)))
    two = b.dot(e, v, batch=((0, 1), (0, 1)), contract=((3,), (2,)))
    b.output("y", b.reshape(one, (2, 3, 4, 5)) - two)
    _, f = followed(b)
    assert not f.scope.value(f.program.outputs["y"]).above


def test_operands_that_cancel_take_two_steps() -> None:
    b = ProgramBuilder()
    x, m, g = b.input("x", "f32[4,5]"), b.input("m", "f32[4]"), b.input("g", "f32[4,3]")
    e = b.exponential(x - row(b, m, x))
    b.output("y", b.dot(e, g * row(b, b.exponential(m), g), contract=((0,), (0,))))
    found, _ = followed(b)
    product, whole = found.hops[-2:]
    assert {product.name, whole.name} <= found.ghosts, (
        "what is summed, and its sum, are ghosts that equal others"
    )


def test_quotients_of_different_rows_are_not_summed() -> None:
    b = ProgramBuilder()
    x, v = b.input("x", "f32[4,5]"), b.input("v", "f32[4,3]")
    e = b.exponential(x)
    p = e / row(b, e.sum(1), e)
    b.output("y", b.dot(p, v, contract=((0,), (0,))))
    found, f = followed(b)
    assert f.program.outputs["y"] not in {h.name for h in found.hops}


def test_a_masked_sum_is_named_by_what_shows_that_it_is_positive() -> None:
    b = ProgramBuilder()
    x, p = b.input("x", "f32[4,5]"), b.input("p", "i1[4,5]")
    shut = b.select(p, x, b.constant("-inf", "f32[4,5]"))
    top = b.reduce(shut, (1,), "max")
    total = b.exponential(shut - row(b, top, x)).sum(1)
    b.output("y", top + b.log(total))
    program = b.build()
    sums = [op.out for op in program.ops if op.name == "reduce" and op.text("kind") == "add"]
    for certain in (True, False):
        f = Follower(program, (sums if certain else []).__contains__, lambda _: False)
        found = f.follow()
        assert any(h.given for h in found.hops) == certain
        assert (program.outputs["y"] in {h.name for h in found.hops}) == certain
