"""What stands apart from its layer, and belongs to it alone, joins it."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from certificates.plan.program import Program
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.growth import Growth, grown
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


def fed(count: int, mesh: bool, reduced: bool) -> Program:
    """Layers that are given a sum each, computed before all of them; with ``reduced`` over ranks too."""
    b = ProgramBuilder({"dp": 2} if mesh else None)
    x = b.input("x", "f32[4]")
    sums = [b.input(f"params.layers.{n}.g", "f32[8,4]").sum(0) for n in range(count)]
    if reduced:
        sums = [b.all_reduce(s, "dp") for s in sums]
    for n, s in enumerate(sums):
        y = s
        for _ in range(LONG):
            y = b.tanh(y * s)
        b.output(f"out.layers.{n}.y", y + x)
    return b.build()


def test_what_stands_before_a_layer_joins_it_in_all_programs_or_in_none() -> None:
    """A gradient that ranks reduce is given to a layer's update: the specification's has to be given, too."""
    for reduced in (False, True):
        programs = {"s": fed(4, False, False), "c0": fed(4, True, reduced)}
        made = grown({owner: layers(Flow(p), handed=False) for owner, p in programs.items()})
        names = {
            owner: [of[0].flow.producer[m].name for m in of[0].instances[0].members]
            for owner, of in made.items()
        }
        assert [n.count("reduce") for n in names.values()] == ([0, 0] if reduced else [1, 1])
