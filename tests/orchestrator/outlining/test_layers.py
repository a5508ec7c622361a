"""Which repetition is which layer: told by the names of the tensors that it uses."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.layers import Labels, layers

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
