"""The written proof: only what the wanted facts need; and what falls with a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.plan import Plan
from certificates.proof.reading import proof_from_json
from orchestrator.proving.engine import Engine
from orchestrator.solving.premises import AllPremises
from trainverify import Kind, verify

from ..plans import pair


@pytest.fixture(scope="module")
def engine(mlp: Plan) -> Engine:
    """All claims of the plan with their stages, no premise left out and none solved."""
    found = Engine(mlp, AllPremises())
    found.relate()
    for facts in found.claims():
        for number in facts:
            found.prove(number)
    return found


def test_one_output_is_written_without_the_stages_of_others(engine: Engine) -> None:
    outputs = [n for facts in engine.claims() for n in facts]
    whole, one = engine.proof(outputs), engine.proof(outputs[:1])
    assert 0 < one.size[1] < whole.size[1]
    assert {o.text for o in one.obligations} <= {o.text for o in whole.obligations}
    proof = proof_from_json(json.loads(one.document))
    assert engine.knowledge.facts[outputs[0]] in proof.facts


def test_obligations_carry_the_status_they_are_written_for(engine: Engine) -> None:
    """With the answer in them, a run of another solver can be compared with it."""
    wanted = engine.claims()[0]
    for status in ("unknown", "unsat"):
        assert all(f":status {status}" in o.text for o in engine.proof(wanted, status).obligations)


def test_what_rests_on_a_refused_file_falls_and_nothing_else_does(engine: Engine) -> None:
    wanted = [n for facts in engine.claims() for n in facts]
    proof = engine.proof(wanted)
    assert engine.fallen({}) == {}
    first, *_ = proof.obligations
    fallen = engine.fallen({first.file: "refused"})
    assert fallen, "some stage has this file"
    for number, reason in fallen.items():
        assert reason.startswith("refused of the obligation of: ")
        below = engine.proved.needed([number])
        assert below & fallen.keys()
    for number in set(engine.proved.built) - fallen.keys():
        assert not set(engine.proved.uses(number)) & fallen.keys()


def test_every_file_takes_something_down(engine: Engine) -> None:
    """A file that no fact rests on would be a proof of nothing."""
    wanted = [n for facts in engine.claims() for n in facts]
    for obligation in engine.proof(wanted).obligations:
        assert set(engine.fallen({obligation.file: "refused"})) & set(engine.proved.needed(wanted))


def test_a_parameter_that_is_handed_on_untouched_is_proved(tmp_path: Path) -> None:
    """Its claim is the declared fact: no stage names it, and the proof must all the same."""

    def write(b: ProgramBuilder) -> None:
        b.output("y", b.input("x", "f32[4]") * 2)
        b.output("frozen", b.input("frozen", "f32[3]"))

    plan = pair({"tp": 2}, write, write, {"x": {}, "frozen": {}}, {"y": {}, "frozen": {}})
    assert verify(plan, out=tmp_path / "bundle").kind is Kind.PROVED
