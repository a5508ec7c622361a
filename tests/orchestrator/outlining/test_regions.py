"""Parts of a program that become calls: what each computes by itself, and what it reads."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.regions import Instance, Region, Signature

from .test_flow import program


def layer(b: ProgramBuilder, x: Value, w: Value, scale: int = 2) -> Value:
    return b.tanh((x * w) * scale)


def layers(count: int) -> tuple[Flow, list[tuple[str, ...]]]:
    """Equal layers one after the other, and the core ops of each."""
    b = ProgramBuilder()
    x = b.input("x", "f32[4]")
    for i in range(count):
        x = layer(b, x, b.input(f"w{i}", "f32[4]"))
    b.output("y", x)
    flow = Flow(program(b))
    core = [op.out for op in flow.core]
    return flow, [tuple(core[i : i + 2]) for i in range(0, len(core), 2)]


def test_equal_layers_have_equal_ops_over_sites_of_their_own() -> None:
    flow, members = layers(3)
    first, second, third = (Instance.of(flow, 2 * i, m) for i, m in enumerate(members))
    assert first.ops == second.ops == third.ops
    assert (first.sites, second.sites[1]) == (["x", "w0"], "w1")
    assert second.sites[0] == first.members[-1], "a layer reads the result of the layer before"


def test_what_somebody_else_reads_is_shown_and_nothing_else() -> None:
    flow, members = layers(3)
    instances = {i: Instance.of(flow, 2 * i, m) for i, m in enumerate(members)}
    region = Region(flow, instances)
    last = instances[0].local[members[0][-1]]
    assert region.shown() == {last}, "the product stays inside"
    assert Signature.of([region], ()) == Signature((0, 1), (last,), ())


def test_one_signature_serves_the_same_layer_of_several_programs() -> None:
    """A stage that reads both results of a layer, beside one that reads the last only."""
    flow, members = layers(3)
    quiet = Region(flow, {i: Instance.of(flow, 2 * i, m) for i, m in enumerate(members)})
    b = ProgramBuilder()
    x, w = b.input("x", "f32[4]"), b.input("w0", "f32[4]")
    product = x * w
    b.output("p", product)
    b.output("y", b.tanh(product * 2))
    other = Flow(program(b))
    loud = Region(other, {7: Instance.of(other, 0, [op.out for op in other.core])})
    assert loud.instances[7].ops == quiet.instances[0].ops
    assert Signature.of([quiet, loud], ()).places == tuple(sorted(quiet.shown() | loud.shown()))
    assert len(loud.shown()) == 2 and len(quiet.shown()) == 1


def test_an_operand_made_in_another_way_is_handed_over_as_it_stands() -> None:
    """The first layer reads a cast of the input where the others read the result of a layer."""
    b = ProgramBuilder()
    x = b.convert(b.input("x", "bf16[4]"), "f32")
    for i in range(3):
        x = layer(b, x, b.input(f"w{i}", "f32[4]"))
    b.output("y", x)
    flow = Flow(program(b))
    core = [op.out for op in flow.core]
    first = Instance.of(flow, 0, core[:2])
    second = Instance.of(flow, 2, core[2:4])
    assert first.ops != second.ops
    found = second.beside(flow, 0, core[:2])
    assert found is not None and found.ops == second.ops
    assert flow.producer[found.sites[0]].name == "convert"


def test_a_layer_with_another_factor_is_not_beside() -> None:
    b = ProgramBuilder()
    x, w = b.input("x", "f32[4]"), b.input("w", "f32[4]")
    b.output("y", layer(b, layer(b, x, w), w, scale=3))
    flow = Flow(program(b))
    core = [op.out for op in flow.core]
    assert Instance.of(flow, 0, core[:2]).beside(flow, 2, core[2:]) is None


def test_a_long_chain_inside_a_layer_needs_no_deep_stack() -> None:
    b = ProgramBuilder()
    for name in "xy":
        value = b.input(name, "f32[2]")
        for _ in range(3000):
            value = b.negate(value)
        b.output(f"out.{name}", b.tanh(value))
    flow = Flow(program(b))
    first, second = ((op.out,) for op in flow.core)
    instance = Instance.of(flow, 0, first)
    assert len(instance.ops) == 3001 and instance.sites == ["x"]
    found = instance.beside(flow, 1, second)
    assert found is not None and found.sites == ["y"]
