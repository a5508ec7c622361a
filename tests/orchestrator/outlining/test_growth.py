"""What stands apart from its layer, and belongs to it alone, joins it."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from certificates.plan.program import Program
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.growth import Growth
from orchestrator.outlining.layers import layers

from .test_flow import program

#: A layer is long enough to be worth a function: so many products and as many tangents, and a sum.
LONG = 20
SIZE = 2 * LONG + 1


def chain(count: int, first: int = 0, norms: bool = False, total: bool = False) -> Program:
    """Layers one after the other; with ``norms`` behind all of them the square of each result is summed, and
    with ``total`` that of the sum of two."""
    b = ProgramBuilder()
    x = b.input("x", "f32[4]")
    kept = []
    for n in range(first, first + count):
        w = b.input(f"params.layers.{n}.w", "f32[4]")
        for _ in range(LONG):
            x = b.tanh(x * w)
        x = x + w
        kept.append(x)
    for n, y in enumerate(kept) if norms else ():
        b.output(f"norm.{first + n}", (y * y).sum(0))
    if total:
        both = kept[0] + kept[1]
        b.output("total", (both * both).sum(0))
    b.output("y", x)
    return program(b)


def test_the_norm_of_a_layers_result_joins_the_layer() -> None:
    found = layers(Flow(chain(4, norms=True)), handed=False)
    before = {n: len(i.members) for n, i in found[0].instances.items()}
    Growth(found).grow()
    assert {n: len(i.members) - before[n] for n, i in found[0].instances.items()} == dict.fromkeys(before, 2)


def test_what_rests_on_two_layers_joins_none() -> None:
    found = layers(Flow(chain(4, total=True)), handed=False)
    before = [i.members for i in found[0].instances.values()]
    Growth(found).grow()
    assert [i.members for i in found[0].instances.values()] == before
