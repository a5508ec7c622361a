"""Core ops and the cheap ones between them, and the order in which both are executed."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.program import Program
from orchestrator.outlining.flow import Flow, executed
from orchestrator.outlining.outline import in_order


def program(b: ProgramBuilder) -> Program:
    """What a builder wrote, as the program of the specification."""
    empty = ProgramBuilder({}).build()
    plan = build_plan(name="one", mesh={}, specification=b.build(), classes=empty, inputs={}, outputs={})
    return plan.specification


def test_operands_stand_before_what_reads_them_and_each_once() -> None:
    reads = {"z": ["y", "x"], "y": ["x", "x"], "w": ["z"]}
    assert list(executed(reads.items(), ["y", "w", "y"])) == ["x", "y", "z", "w"]


def test_the_order_depends_on_what_is_wanted_not_on_where_it_stood() -> None:
    reads = [("p", ["a"]), ("q", ["b"])]
    assert list(executed(reads, ["q", "p"])) == list(executed(reversed(reads), ["q", "p"]))
    assert list(executed(reads, [])) == []


def test_a_long_chain_needs_no_deep_stack() -> None:
    """A program that is one chain, such as a sum over many microbatches, is ordered like a short one."""
    b = ProgramBuilder()
    value = b.input("x", "f32[2]")
    for _ in range(3000):
        value = value + value
    b.output("y", value)
    chain = program(b)
    assert in_order(chain) == chain


def test_what_is_not_read_is_dropped() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[2]")
    b.tanh(x)
    b.output("y", b.exponential(x))
    assert [op.name for op in in_order(program(b)).ops] == ["exponential"]


def test_cheap_ops_are_between_core_ops_and_have_their_leaves() -> None:
    """A product with a literal is computed where it is used; a product of two tensors is handed over."""
    b = ProgramBuilder()
    x, y = b.input("x", "f32[2,3]"), b.input("y", "f32[3,2]")
    scaled = b.transpose(x * 2, (1, 0))
    b.output("z", scaled * y)
    flow = Flow(program(b))
    assert [op.name for op in flow.core] == ["multiply"]
    (product,) = flow.core
    assert flow.leaves_of(product) == ("x", "y")
    assert flow.users == {"x": [product.out], "y": [product.out], product.out: ["output z"]}


def test_equal_work_has_equal_tokens() -> None:
    """A layer repeats although its operands have other names; another constant is other work."""
    b = ProgramBuilder()
    names = ("a", "b", "c")
    for name, factor in zip(names, (2, 2, 3), strict=True):
        b.output(f"out.{name}", b.tanh(b.input(name, "f32[4]") * factor))
    first, second, third = (flow := Flow(program(b))).core
    assert flow.token(first) == flow.token(second) != flow.token(third)


def test_a_long_chain_of_cheap_ops_needs_no_deep_stack() -> None:
    """Scalings and casts of one value, a few thousand on end, are compared and followed to their leaf."""
    b = ProgramBuilder()
    x = b.input("x", "f32[2]")
    ends = []
    for _ in range(2):
        value = x
        for _ in range(3000):
            value = b.negate(value)
        ends.append(b.tanh(value))
    for name, end in zip("yz", ends, strict=True):
        b.output(name, end)
    flow = Flow(program(b))
    first, second = flow.core
    assert flow.leaves_of(first) == ("x",)
    assert flow.token(first) == flow.token(second)
