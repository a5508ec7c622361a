"""Rank expansion: equal work is one node, collectives become work on members, and circles are errors."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from certificates.plan.types import TensorType
from orchestrator.errors import EvaluationError, OutOfTime
from orchestrator.evaluating.network import Expansion, Network, Node, literal

from ..plans import Write, pair


def expanded(plan: Plan, *, alike: bool = False) -> Expansion:
    """Inputs of ranks are nodes of their own, or all ranks have the same."""
    network = Network()

    def given(owner: object, name: str, type_: TensorType) -> int:
        return network.add(Node("input", (), (owner, name), type_.sort, type_.shape))

    return Expansion(
        plan,
        network,
        lambda name, type_: given("s", name, type_),
        lambda cls, rank, name, type_: given("s" if alike else rank, name, type_),
    )


def ranks(write: Write, mesh: dict[str, int] | None = None) -> Plan:
    return pair(mesh or {"dp": 2, "tp": 2}, lambda s: s.output("y", s.tanh(s.input("x", "f32[4]"))), write,
                {}, {})  # fmt: skip


def node(expansion: Expansion, rank: int, output: str = "y") -> Node:
    program = expansion.program(rank)
    return expansion.network.nodes[expansion.value(rank, program.outputs[output])]


def test_ranks_that_compute_the_same_share_it_with_the_specification() -> None:
    plan = ranks(lambda b: b.output("y", b.tanh(b.input("x", "f32[4]"))))
    same, apart = expanded(plan, alike=True), expanded(plan)
    out = plan.classes[0].program.outputs["y"]
    assert {same.value(r, out) for r in range(4)} == {same.value(-1, plan.specification.outputs["y"])}
    assert len({apart.value(r, out) for r in range(4)}) == 4


def test_a_sum_over_a_group_is_one_node_for_all_its_members() -> None:
    expansion = expanded(ranks(lambda b: b.output("y", b.all_reduce(b.input("x", "f32[4]"), "dp"))))
    out = expansion.program(0).outputs["y"]
    values = [expansion.value(r, out) for r in range(4)]
    assert values[0] == values[2] != values[1] == values[3]
    assert node(expansion, 0).op == "merge" and len(node(expansion, 0).ins) == 2


def test_a_gathered_tensor_has_its_parts_in_the_order_of_the_group() -> None:
    expansion = expanded(ranks(lambda b: b.output("y", b.all_gather(b.input("x", "f32[4]"), "tp"))))
    parts = [expansion.network.nodes[i].attrs[0] for i in node(expansion, 3).ins]
    assert node(expansion, 3).op == "concatenate" and parts == [2, 3]


def test_a_scattered_sum_is_the_piece_of_the_place_in_the_group() -> None:
    expansion = expanded(ranks(lambda b: b.output("y", b.reduce_scatter(b.input("x", "f32[4]"), "dp"))))
    assert [node(expansion, r).attrs for r in (0, 2)] == [((0, 1),), ((2, 1),)]
    assert {node(expansion, r).shape for r in range(4)} == {(2,)}


def test_what_depends_on_the_rank_is_resolved() -> None:
    def write(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4]")
        b.output("y", b.slice(x, [b.axis_index("dp").scale(2)], [2]))
        b.output("n", b.constant(b.axis_index("tp") + 7, "i64[]"))

    expansion = expanded(ranks(write))
    assert [node(expansion, r).attrs for r in (1, 3)] == [((0, 1),), ((2, 1),)]
    assert [node(expansion, r, "n").attrs for r in (0, 1)] == [(7,), (8,)]


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_what_changes_nothing_is_no_node(shape: tuple[int, ...]) -> None:
    """A plan that reshapes back and forth is the plan that does not."""

    def write(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4]")
        b.output("y", b.transpose(b.slice(x, [0], [4]), (0,)))
        b.output("z", b.reshape(x, shape))

    expansion = expanded(ranks(write))
    assert node(expansion, 0).op == "input"
    assert node(expansion, 0, "z").op == ("input" if shape == (4,) else "reshape")


def test_a_long_chain_needs_no_deep_stack() -> None:
    def write(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4]")
        for _ in range(3000):
            x = b.tanh(x)
        b.output("y", x)

    expansion = expanded(ranks(write, {"dp": 1}))
    node(expansion, 0)
    assert len(expansion.network.nodes) == 3001


def test_work_ends_after_the_last_step() -> None:
    """The same on every machine, where a deadline would not be."""
    expansion = expanded(ranks(lambda b: b.output("y", b.tanh(b.tanh(b.input("x", "f32[4]"))))))
    expansion.network.work.last = 2
    with pytest.raises(OutOfTime):
        node(expansion, 0)


@pytest.mark.parametrize(
    ("value", "type_", "exact"),
    [
        ("1/3", "f32[]", Fraction(1, 3)),
        ("7", "i64[]", 7),
        ("true", "i1[]", True),
        ("-inf", "f32[]", "-inf"),
        (Affine.of(1, {"dp": 2}), "i64[]", 7),
        (Affine.of(1, {"dp": 2}), "f32[]", Fraction(7)),
    ],
)
def test_literals_are_exact(value: str | Affine, type_: str, exact: object) -> None:
    found = literal(Op("%0", "constant", (), TensorType.parse(type_), {"value": value}), {"dp": 3})
    assert found == exact and type(found) is type(exact)


def test_a_constant_without_a_literal_is_named() -> None:
    with pytest.raises(EvaluationError, match="constant %0 has no literal"):
        literal(Op("%0", "constant", (), TensorType.parse("f32[]"), {"value": 3}), {})
