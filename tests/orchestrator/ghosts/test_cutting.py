"""Ops on tensors that were put behind each other are followed part by part."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.program import Op
from orchestrator.ghosts.following import Followed, Follower

from .merged import over, softmax


def halves(b: ProgramBuilder) -> Value:
    """Two softmaxes behind each other."""
    return b.concatenate([softmax(b, b.input(n, "f32[4,5]")) for n in ("x", "z")], 0)


def follow(b: ProgramBuilder, y: Value) -> tuple[Follower, Followed, dict[str, Op]]:
    b.output("y", y)
    f = Follower(b.build(), lambda _: False, lambda _: False)
    found = f.follow()
    return f, found, {op.out: op for op in found.program.ops}


def parts_of(f: Follower, name: str) -> tuple[int, tuple[int, ...]]:
    join = f.cutting.joins[name]
    return join.dim, join.starts


def test_what_is_made_of_parts_is_their_concatenation() -> None:
    b = ProgramBuilder()
    g = b.input("g", "f32[8,5]")
    f, found, ops = follow(b, (g * halves(b)).sum(1))
    (hop,) = (h for h in found.hops if h.name == found.program.outputs["y"])
    assert ops[hop.ghost].name == "concatenate" and ops[hop.ghost].type.shape == (8,)
    assert {ops[v].name for v in ops[hop.ghost].ins} == {"reduce"}
    assert hop.opened == {*ops[hop.ghost].ins}, "each part is what the op is on its rows, no more"
    assert parts_of(f, hop.name) == (0, (0, 4, 8))


def test_rows_of_one_part_are_of_that_part() -> None:
    b = ProgramBuilder()
    f, found, _ = follow(b, halves(b)[4:8, :])
    y, joined = found.program.outputs["y"], next(iter(f.cutting.joins))
    assert f.scope.known[y] == f.scope.known[f.cutting.joins[joined].parts[1]]
    assert y in f.scope.lively and y not in f.cutting.joins


def test_rows_of_several_parts_are_not_followed() -> None:
    b = ProgramBuilder()
    f, found, _ = follow(b, halves(b)[2:6, :])
    assert found.program.outputs["y"] not in f.scope.known


@pytest.mark.parametrize(
    ("name", "dim"), [("transpose", 1), ("broadcast", 1), ("reshape", 0), ("matmul", 0), ("nested", 0)]
)
def test_where_the_parts_lie(name: str, dim: int) -> None:
    b = ProgramBuilder()
    x = halves(b)
    made = {
        "transpose": lambda: x.transpose(1, 0),
        "broadcast": lambda: b.broadcast(x, (3, 8, 5), (1, 2)),
        "reshape": lambda: b.reshape(x, (8, 5, 1)),
        "matmul": lambda: x @ b.input("w", "f32[5,2]"),
        "nested": lambda: b.concatenate([x, x], 0),
    }[name]()
    f, found, _ = follow(b, made)
    starts = (0, 4, 8, 12, 16) if name == "nested" else (0, 4, 8)
    assert parts_of(f, found.program.outputs["y"]) == (dim, starts)


@pytest.mark.parametrize("name", ["sum", "maximum", "reshape", "tanh"])
def test_what_is_no_op_on_each_part_is_a_letter(name: str) -> None:
    """A sum over parts is one of the plan's own, related as it is; a maximum is no ghost."""
    b = ProgramBuilder()
    x = halves(b)
    made = {
        "sum": lambda: x.sum(0),
        "maximum": lambda: b.reduce(x, (1,), "max"),
        "reshape": lambda: b.reshape(x, (40,)),
        "tanh": lambda: b.tanh(x),
    }[name]()
    f, found, _ = follow(b, made)
    y = found.program.outputs["y"]
    assert y not in f.cutting.joins and y not in f.scope.known and y not in {h.name for h in found.hops}


def test_a_part_that_cannot_be_followed_leaves_no_hops() -> None:
    b = ProgramBuilder()
    x = halves(b)
    row = b.exponential(b.input("w", "f32[8]"))
    p = x / over(b, x.sum(1) + row, x)
    _, found, ops = follow(b, b.dot(p, b.input("v", "f32[8,3]"), contract=((0,), (0,))))
    assert found.program.outputs["y"] not in {h.name for h in found.hops}
    assert all(h.ghost in ops for h in found.hops)


def test_plain_tensors_behind_each_other_are_none_of_it() -> None:
    b = ProgramBuilder()
    x = b.input("u", "f32[4,5]")
    f, _, _ = follow(b, b.concatenate([x, x], 0) * halves(b))
    assert len(f.cutting.joins) == 2, "the softmaxes, and what is multiplied with them"
