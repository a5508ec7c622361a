"""A call as all programs see it: what each operand and each result is inside and outside."""

from __future__ import annotations

import pytest

from certificates.plan.plan import Plan
from certificates.plan.sites import bodies, sites
from orchestrator.outlining.outline import outline
from tests.orchestrator.deep_plans import deep


@pytest.fixture(scope="module")
def layers() -> Plan:
    return outline(deep(6))


def test_every_layer_is_one_site_in_every_program(layers: Plan) -> None:
    found = sites(layers)
    assert sorted(found) == [("f0", i) for i in range(6)]
    assert all(site.calls.keys() == {"s", *(c.name for c in layers.classes)} for site in found.values())


def test_names_inside_and_outside_fit_together(layers: Plan) -> None:
    """Every operand of the call is an input of the body, and seen from there it is that operand."""
    of = bodies(layers, "f0")
    for site in sites(layers).values():
        visible = site.visible(of)
        operands = site.operands(of)
        assert operands
        for outer, inputs in operands.items():
            assert all(visible[inner] == (outer,) for inner in inputs)
        results = {f"{owner}:{value}" for owner, call in site.calls.items() for value in call.results}
        shown = {f"{owner}:{value}" for owner, body in of.items() for value in body.outputs.values()}
        assert {name for inner in shown for name in visible[inner]} <= results | set(operands)


def test_layers_hand_their_result_on(layers: Plan) -> None:
    of, found = bodies(layers, "f0"), sites(layers)
    for i in range(5):
        results = {f"{o}:{v}" for o, call in found["f0", i].calls.items() for v in call.results}
        assert results & set(found["f0", i + 1].operands(of)), f"layer {i + 1} reads nothing of layer {i}"
