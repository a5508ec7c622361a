"""Which repetition is which layer: told by the names of the tensors that it uses."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.layers import Labels, layers, side_by_side
from orchestrator.outlining.regions import Region

from .test_flow import program
from .test_growth import SIZE, chain


def test_repetitions_are_numbered_as_their_parameters_are() -> None:
    (region,) = layers(Flow(chain(4, first=3)), handed=False)
    assert sorted(region.instances) == [3, 4, 5, 6]
    assert {len(i.members) for i in region.instances.values()} == {SIZE}


def test_two_repetitions_are_too_few() -> None:
    assert layers(Flow(chain(2)), handed=False) == []


def test_work_without_a_name_belongs_to_the_layer_whose_results_it_reads() -> None:
    b = ProgramBuilder()
    a, c = (b.input(f"params.layers.{n}.w", "f32[2]") for n in (2, 5))
    made = [b.tanh(a), b.tanh(c)]
    late = b.tanh(made[1] * made[1])
    b.output("y", made[0] + late)
    flow = Flow(program(b))
    labels = Labels(flow)
    assert labels.of([made[0].name]) == {2: 1}
    assert labels.of([late.name]) == {}
    labels.inherited |= {made[1].name: 5, flow.producer[late.name].ins[0]: 5}
    assert labels.of([late.name]) == {5: 1}


def test_what_one_program_lacks_is_left_out() -> None:
    """The other repetitions are paired by their layers, in order; those of too few common layers are not."""
    flow = Flow(chain(8))
    (found,) = layers(flow, handed=False)

    def of(*labels: int) -> Region:
        return Region(flow, {n: found.instances[n] for n in labels})

    dense, sparse = of(0, 1, 2), of(3, 4, 5, 6)
    single, ranks = [dense, sparse, dense, sparse], [dense, sparse, sparse]
    assert side_by_side({"s": single, "c0": ranks}) == [
        {"s": single[i], "c0": ranks[k]} for i, k in ((0, 0), (1, 1), (3, 2))
    ]
    assert side_by_side({"s": [dense], "c0": [sparse, dense, of(0, 1)]}) == [{"s": dense, "c0": dense}]
    assert side_by_side({"s": single, "c0": single, "c1": []}) == []
