"""A program with calls, and the bodies that are called, say together what the flat program says."""

from __future__ import annotations

from certificates.plan.calls import calls
from orchestrator.outlining.calling import body, called
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.layers import layers
from orchestrator.outlining.regions import Signature

from .test_growth import SIZE, chain


def test_calls_stand_in_place_of_layers_and_hand_on_what_others_read() -> None:
    found = layers(Flow(chain(4)), handed=False)
    signature = Signature.of(found, ())
    made = called(chain(4), found, [signature])
    inner = body(found[0].instances[0], signature)
    assert [c.instance for c in calls(made)] == [0, 1, 2, 3]
    assert len(made.ops) == 4 and len(inner.ops) == SIZE
    assert list(inner.inputs) == ["a0", "a1"] and list(inner.outputs) == ["r0"]
    first, second = list(calls(made))[:2]
    assert first.results[0] in second.ins, "the second layer reads the result of the first"
