"""Layers of experts by hand: right ones are PROVED, for every choice of experts, wrong ones are REFUTED."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from certificates.errors import FormatError
from certificates.plan.plan import Plan
from orchestrator.evaluating import interpreter, scatter
from orchestrator.refuting.search import Refuter
from tests.corpus.run import replayed
from tests.expert_plans import (
    IN_EXPERTS,
    MISORDERED,
    PACKED_REFUTED,
    REFUTED,
    RIGHT,
    ROUTED,
    Sizes,
    experts,
)
from tests.orchestrator.plans import unproved
from tests.packed_runs import Run
from tests.test_pipelines import proved, wrong_outputs

#: A router that chooses by itself, two of sixteen experts in the better two of four groups.
GROUPS = Sizes(tokens=4, experts=16, groups=4)

#: Smaller by far; not so small that sizes coincide, and facts with them.
MIDDLE = Sizes(dp=2, ep=16, tp=4, tokens=256, experts=64, chosen=8)
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
    counts = [proved(experts(s), tmp_path / str(s.ep)) for s in (MIDDLE, large)]
    assert counts[1] == counts[0]


@pytest.mark.slow
def test_a_router_of_256_experts_in_8_groups_is_proved(tmp_path: Path) -> None:
    proved(experts(Sizes(dp=2, ep=8, tp=2, tokens=512, experts=256, chosen=8, groups=8)), tmp_path / "bundle")


# --- rows dispatched --------------------------------------------------------------------------------------

#: Mistakes that a packed layer can have as well: in the router, after the experts, in reductions and updates.
ELSEWHERE = [way for way in REFUTED if way not in IN_EXPERTS]


def as_it_runs(plan: Plan, seed: int) -> set[str]:
    """Outputs that are wrong when rows are sorted, sent and cut by counts."""
    rng = np.random.default_rng(seed)
    inputs = scatter.random_inputs(plan, rng)
    spec = interpreter.run_specification(plan, inputs)
    ranks = Run(plan, scatter.scatter_inputs(plan, inputs, rng), rng).outputs()
    return {m.plan for m in scatter.compare_outputs(plan, spec, ranks, 1e-9)}


def test_a_layer_that_dispatches_rows_is_proved(tmp_path: Path) -> None:
    """By all-to-all of as many rows as there are, against the plain layer on all tokens."""
    plan = experts(packed=True)
    assert set[str]().union(*(as_it_runs(plan, seed) for seed in range(4))) == set()
    assert proved(plan, tmp_path / "bundle") > 0


@pytest.mark.parametrize("sizes", [GROUPS, Sizes(dp=1, ep=4, tp=1, tokens=5, experts=8, chosen=3)])
def test_other_dispatches_are_proved(sizes: Sizes) -> None:
    plan = experts(sizes, packed=True)
    assert as_it_runs(plan, 1) == set()
    assert unproved(plan) == []


@pytest.mark.parametrize("chosen", [1, 2])
def test_a_specification_that_sorts_its_rows_is_proved(chosen: int) -> None:
    """Copies of a token are equal rows: each is the one in its place."""
    assert unproved(experts(Sizes(chosen=chosen), packed=True, alone=True)) == []


@pytest.mark.parametrize("way", [*ELSEWHERE, *PACKED_REFUTED])
def test_a_wrong_dispatch_is_refuted(way: str) -> None:
    plan = experts(way=way, packed=True)
    wrong = as_it_runs(plan, 0)
    assert wrong == wrong_outputs(plan, 0)
    assert (REFUTED | PACKED_REFUTED)[way] in wrong
    witness = Refuter(plan).search(plan, budget=30.0)
    assert witness is not None, "no witness"
    replayed(plan, witness.to_json())
    assert plan.outputs[witness.output].plan in wrong


@pytest.mark.parametrize("way", MISORDERED)
def test_a_dispatch_that_depends_on_the_order_of_rows_is_refused(way: str) -> None:
    with pytest.raises(FormatError, match=MISORDERED[way]):
        experts(way=way, packed=True)


@pytest.mark.slow
def test_a_dispatch_to_256_experts_has_no_more_obligations(tmp_path: Path) -> None:
    """8 of 256 experts on 64 ranks, with 4 replicas and 4 ranks of tp: 1,024 ranks of 4,096 tokens."""
    large = Sizes(dp=4, ep=64, tp=4, tokens=4096, experts=256, chosen=8)
    counts = [proved(experts(s, packed=True), tmp_path / str(s.ep)) for s in (MIDDLE, large)]
    assert counts[1] == counts[0]
