"""``tv-capture --run``: a plan is compared with what real processes compute, step after step."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import nn

from certificates.plan.functions import inline
from certificates.plan.plan import Mesh, Plan
from certificates.plan.reading import load
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.cli import main
from orchestrator.capture.errors import DisagreementError, RunError
from orchestrator.capture.running import Comparison, _Judge, affordable, compare, run, with_run
from orchestrator.evaluating import interpreter
from tests.conftest import build_mlp
from tests.right_plans.front.flat import zero_redundancy
from tests.right_plans.front.flat_wrapped import flat_parameters, views_of_flat_parameters

FILE = """
import torch, torch.distributed as dist
from orchestrator.capture import Batch, Definition

def step(model, optimizer, batch, parallel=False):
    optimizer.zero_grad()
    loss = model(batch["x"]).square().mean()
    loss.backward()
    for p in model.parameters() if parallel else ():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    return {"loss": loss}

definition = Definition(
    name="ddp", mesh={"dp": 2}, build=lambda: torch.nn.Linear(4, 3), parallelize=lambda model, mesh: model,
    optimizer=lambda params: torch.optim.AdamW(params), step=step,
    parallel_step=lambda *given: step(*given, parallel=True),
    batch={"x": Batch((4, 4), shard={"dp": 0})},
    layouts={"weight": {}, "bias": {}}, mean_over={"loss": ("dp",)},
)
"""


def single(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    optimizer.zero_grad()
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    return {"loss": loss}


def reduced(op: Any) -> Any:
    """A data-parallel step that reduces its gradients with ``op()``."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = model(batch["x"]).square().mean()
        loss.backward()
        dist.all_reduce(model.weight.grad, op=op())
        optimizer.step()
        return {"loss": loss}

    return step


DDP = Definition(
    name="ddp",
    mesh={"dp": 2},
    build=lambda: nn.Linear(4, 3, bias=False),
    parallelize=lambda model, mesh: model,
    optimizer=lambda params: torch.optim.AdamW(params),
    step=single,
    parallel_step=reduced(lambda: dist.ReduceOp.AVG),
    batch={"x": Batch((4, 4), shard={"dp": 0})},
    layouts={"weight": {}},
    mean_over={"loss": ("dp",)},
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return capture(DDP, jobs=1)


@pytest.mark.slow
def test_all_numbers_of_a_plan_that_says_what_the_code_does_agree(plan: Plan) -> None:
    compared = run(plan, DDP, steps=4, seed=3)
    assert (compared.steps, compared.ranks, compared.seed, compared.precision) == (4, 2, 3, "float64")
    # Loss, weight, two moments and a step count, and the gradient: on three devices.
    assert compared.numbers >= 4 * 3 * (1 + 3 * 12 + 1) and compared.largest < 1e-12


@pytest.mark.slow
def test_a_factor_before_a_sum_is_run_though_gloo_has_none(plan: Plan) -> None:
    half = dataclasses.replace(DDP, parallel_step=reduced(lambda: dist.ReduceOp.PREMUL_SUM(0.5)))
    assert run(plan, half).largest < 1e-12


@pytest.mark.slow
def test_code_that_does_something_else_is_named_with_output_rank_step_and_numbers(plan: Plan) -> None:
    summed = dataclasses.replace(DDP, parallel_step=reduced(lambda: dist.ReduceOp.SUM))
    message = (
        r"exp_avg.weight\[\d, \d\] is .* in the real run and .* after step 1 \(12 of 12 .*test_running.py:"
    )
    with pytest.raises(DisagreementError, match=message) as caught:
        run(plan, summed)
    assert caught.value.rank == 0 and caught.value.tensor == "opt.exp_avg.weight"


@pytest.mark.slow
def test_what_only_a_second_step_shows_is_found(plan: Plan) -> None:
    """A gradient that is never zeroed; a counter in Python; a state the plan knows nothing of."""
    calls: list[int] = []

    def stale(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def counting(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"loss": single(model, optimizer, batch)["loss"] * (2 if len(calls) > 2 else 1)}

    def growing(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        result = single(model, optimizer, batch)
        optimizer.state[model.weight]["more"] = torch.zeros(2)
        return result

    def scheduled(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        result = single(model, optimizer, batch)
        optimizer.param_groups[0]["lr"] *= 0.9
        return result

    for step, message in (
        (scheduled, "hyper.lr.* after step 1"),
        (stale, "after step 2"),
        (counting, "loss.* after step 2"),
        (growing, "the plan has none .*opt.more.weight"),
    ):
        with pytest.raises(DisagreementError, match=message):
            run(plan, dataclasses.replace(DDP, step=step))


@pytest.mark.slow
def test_code_that_insists_on_float32_is_run_in_float32(plan: Plan) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = (batch["x"].float() @ model.weight.t().float()).to(model.weight.dtype).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def narrow(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        assert model.weight.dtype == torch.float32
        return single(model, optimizer, batch)

    assert run(plan, dataclasses.replace(DDP, step=step)).precision == "float64 and float32"
    assert run(plan, dataclasses.replace(DDP, step=narrow)).precision == "float32"


@pytest.mark.slow
def test_a_step_that_fails_is_told_by_its_line_and_rank(plan: Plan) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        if dist.get_rank() == 1:
            raise ValueError("rank one has no such thing")
        return reduced(lambda: dist.ReduceOp.AVG)(model, optimizer, batch)

    with pytest.raises(RunError, match="rank one has no such thing") as caught:
        run(plan, dataclasses.replace(DDP, parallel_step=step))
    assert caught.value.rank == 1 and caught.value.frame is not None
    assert caught.value.frame[0] == __file__ and "Traceback" not in str(caught.value)


def test_what_is_too_large_is_a_sentence() -> None:
    example = load(Path(__file__).resolve().parents[3] / "examples" / "llama3-8b-2l-tp2-fsdp2.json.gz")
    with pytest.raises(RunError, match=r"its tensors have \d+ elements over all ranks, more than \d+"):
        affordable(example)
    with pytest.raises(RunError, match="512 ranks are more than the 16"):
        affordable(dataclasses.replace(example, mesh=Mesh({"dp": 512})))


@pytest.mark.slow
def test_the_command_writes_into_the_plan_what_was_compared(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "plan.json.gz"
    file.write_text(FILE)
    words = [str(file), "--out", str(out), "--run", "--steps", "2", "--seed", "5"]
    code = "from orchestrator.capture.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr, "the processes that ran it end in silence"
    said = str(load(out).provenance["run"])
    assert said.startswith("2 consecutive steps, single device and 2 gloo ranks, seed 5: ")
    assert said in result.stderr and "largest difference" in said and len(said) < 200


@pytest.mark.slow
def test_a_plan_that_differs_from_the_run_is_not_written(tmp_path: Path) -> None:
    """What PyTorch does differs between tracing and running: no rule of capture can know of this one."""
    file, out = tmp_path / "mine.py", tmp_path / "plan.json.gz"
    asked = "torch._C._dispatch_tls_is_dispatch_key_included('Python')"
    lie = f"loss = model(batch['x']).square().mean() * (1 + {asked})"
    file.write_text(FILE.replace('loss = model(batch["x"]).square().mean()', lie))
    result = CliRunner().invoke(main, [str(file), "--out", str(out), "--run"])
    assert result.exit_code == 1 and "disagreement: " in result.output and not out.exists()


def test_options_of_a_run_need_a_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    result = CliRunner().invoke(main, [str(file), "--out", str(tmp_path / "plan.json"), "--steps", "2"])
    assert result.exit_code == 2 and "are for --run" in result.output


def judged(want: dict[str, Any], real: dict[str, Any], outputs: set[str], rank: int | None = 0) -> Any:
    judge = _Judge(build_mlp(), "float64")
    judge.check(1, rank, {k: np.array(v) for k, v in want.items()}, real, outputs)
    return judge


def test_numbers_are_counted_and_compared_in_all_elements() -> None:
    judge = judged({"a": [1.0, 2.0, 9.0], "b": 3.0}, {"a": [1.0, 2.0], "b": 3.0}, {"a"})
    assert judge.numbers == 3 and judge.largest == 0.0, "rows of padding are in the plan only"
    with pytest.raises(
        DisagreementError, match=r"a\[1\] is 2.5 in the real run and 2.0 in the plan after step 2"
    ):
        judged({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}, {"a"})


@pytest.mark.parametrize(
    ("want", "real", "message"),
    [
        ({"a": [1.0]}, {}, "the real step has none"),
        ({"a": [1.0]}, {"a": [1.0], "c": 1.0}, "is left by the real step"),
        ({"a": [1.0]}, {"a": [1.0, 2.0]}, "has shape"),
        ({"a": [1.0]}, {"a": 1.0}, "has shape"),
        ({"a": [[1.0]]}, {"a": [1.0]}, "has shape"),
    ],
)
def test_what_is_missing_left_or_of_another_shape_is_a_disagreement(
    want: dict[str, Any], real: dict[str, Any], message: str
) -> None:
    with pytest.raises(DisagreementError, match=message) as caught:
        judged(want, real, {"a"}, rank=2)
    assert caught.value.tensor in ("a", "c") and caught.value.rank == 2


def test_a_run_adds_to_the_provenance_and_takes_nothing_away() -> None:
    plan = dataclasses.replace(build_mlp(), provenance={"file": "mine.py"})
    compared = Comparison(2, 4, 0, 10, "float64", 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        compared.largest = 1.0  # type: ignore[misc]
    added = with_run(plan, compared).provenance
    assert {**added} == {**plan.provenance, "run": added["run"], "run_shims": added["run_shims"]}


class Interpreted:
    """Workers whose real steps are the plan's own, from a rank on those of other numbers."""

    def __init__(self, plan: Plan, wrong: int | None = -1) -> None:
        self.plan, self.wrong = plan, wrong
        self.held: dict[int | None, dict[str, Any]] = {}
        self.batches: list[Any] = []

    def open(self, what: object, wide: bool, seed: int) -> None:
        pass

    def ask(self, method: str, given: Any) -> dict[int | None, Any]:
        if method == "warm_up":
            rng = np.random.default_rng(1)
            whole = interpreter.random_inputs(self.plan, rng)
            per_rank = interpreter.scatter_inputs(self.plan, whole, rng)
            found = {None: whole, **dict(enumerate(per_rank))}
            return {r: {n: v for n, v in found[r].items() if not n.startswith("batch.")} for r in given}
        if method == "set":
            self.held = {r: dict(inputs) for r, inputs in given.items()}
            return {}
        self.batches.append(given[None])
        self.held = {r: self.held[r] | inputs for r, inputs in given.items()}
        ranks = range(self.plan.mesh.ranks)
        outputs = {None: interpreter.run_specification(self.plan, self.held[None])}
        outputs |= dict(enumerate(interpreter.run_plan(self.plan, [self.held[r] for r in ranks])))
        for rank, found in outputs.items():
            self.held[rank] |= {n: v for n, v in found.items() if n in self.held[rank]}
        return {
            r: {n: v + (r == self.wrong) for n, v in (self.held[r] | found).items() if n[:6] != "batch."}
            for r, found in outputs.items()
        }


def test_every_step_of_a_comparison_has_a_batch_of_its_own() -> None:
    """A step that reads the batch of the step before it would agree on one that stays."""
    plan, workers = inline(build_mlp()), Interpreted(inline(build_mlp()))
    compared = compare(plan, workers, None, steps=3, seed=0)  # type: ignore[arg-type]
    assert compared.steps == 3 and compared.largest < 1e-9
    first, second, third = ([np.asarray(v) for v in batch.values()] for batch in workers.batches)
    for one, other in ((first, second), (second, third), (first, third)):
        assert any((a != b).any() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("wrong", "where"), [(None, "single device"), (2, "rank 2")])
def test_a_difference_is_told_of_the_device_that_has_it(wrong: int | None, where: str) -> None:
    plan = inline(build_mlp())
    with pytest.raises(DisagreementError) as caught:
        compare(plan, Interpreted(plan, wrong), None, steps=2, seed=0)  # type: ignore[arg-type]
    assert where in str(caught.value) and (caught.value.rank, caught.value.single) == (wrong, wrong is None)


@pytest.mark.slow
@pytest.mark.parametrize("define", [flat_parameters, views_of_flat_parameters, zero_redundancy])
def test_a_launch_of_flat_parameters_and_of_owners_agrees_with_its_plan(define: Any) -> None:
    """FSDP frees and fills memory of its own; of some parameters a rank owns no element."""
    assert run(capture(define(), jobs=1), define(), steps=2).largest < 1e-6
