"""Layers of experts by hand: right ones are PROVED, for every choice of experts, wrong ones are REFUTED."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.refuting.search import Refuter
from tests.corpus.run import replayed
from tests.expert_plans import REFUTED, RIGHT, ROUTED, Sizes, experts
from tests.orchestrator.plans import unproved
from tests.test_pipelines import proved, wrong_outputs

#: A router that chooses by itself, two of sixteen experts in the better two of four groups.
GROUPS = Sizes(tokens=4, experts=16, groups=4)

#: Two ways to choose agree on some inputs.
SEEDS = range(8)


def test_a_layer_with_its_gradients_is_proved(tmp_path: Path) -> None:
    plan = experts()
    assert wrong_outputs(plan) == set()
    assert proved(plan, tmp_path / "bundle") > 0


@pytest.mark.parametrize("way", RIGHT)
def test_other_ways_to_compute_the_same_are_proved(way: str) -> None:
    plan = experts(way=way)
    assert wrong_outputs(plan) == set()
    assert unproved(plan) == []


@pytest.mark.parametrize("way", ["", "slots sent to their experts", "sigmoid scores"])
def test_a_router_that_chooses_by_itself_is_proved(way: str) -> None:
    plan = experts(GROUPS, way)
    assert wrong_outputs(plan) == set()
    assert unproved(plan) == []


def test_a_token_may_choose_an_expert_twice() -> None:
    """A choice is any integer in its range: no proof rests on different ones."""
    assert unproved(experts(Sizes(experts=2, chosen=3))) == []


@pytest.mark.parametrize("way", [*REFUTED, *ROUTED])
def test_a_wrong_layer_is_refuted(way: str) -> None:
    plan = experts(GROUPS if way in ROUTED else Sizes(), way)
    wrong = set[str]().union(*(wrong_outputs(plan, seed) for seed in SEEDS))
    assert (REFUTED | ROUTED)[way] in wrong
    witness = Refuter(plan).search(plan, budget=30.0)
    assert witness is not None, "no witness"
    replayed(plan, witness.to_json())
    assert plan.outputs[witness.output].plan in wrong


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bias updated from local counts", "expert gradient not summed over dp"])
def test_what_is_right_of_a_wrong_layer_is_proved(way: str) -> None:
    plan = experts(way=way)
    named = {line.split(":", 2)[1] for line in unproved(plan)}
    outputs = plan.classes[0].program.outputs
    assert {n for n, v in outputs.items() if any(k == v for k in named)} == wrong_outputs(plan)


@pytest.mark.slow
def test_obligations_do_not_grow_with_ranks_experts_or_tokens(tmp_path: Path) -> None:
    """256 experts on 64 ranks, of which a token has 8, with 4 replicas and 4 ranks of tp."""
    large = Sizes(dp=4, ep=64, tp=4, tokens=4096, experts=256, chosen=8)
    counts = [proved(experts(s), tmp_path / str(s.ep)) for s in (Sizes(), large)]
    assert counts[1] <= counts[0]


@pytest.mark.slow
def test_a_router_of_256_experts_in_8_groups_is_proved(tmp_path: Path) -> None:
    proved(experts(Sizes(dp=2, ep=8, tp=2, tokens=512, experts=256, chosen=8, groups=8)), tmp_path / "bundle")
