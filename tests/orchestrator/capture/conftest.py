"""Lowers small functions and compares them, on numbers, with PyTorch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from certificates.plan import rows
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.plan.type_rules import check_program
from orchestrator.evaluating import interpreter

if TYPE_CHECKING:
    from orchestrator.capture.definition import Definition
    from orchestrator.capture.lowering import RankProgram

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]

MODELS = Path(__file__).resolve().parents[3] / "examples" / "models"
Function = Callable[..., Any]


def lower(function: Function, *tensors: Any, outside: Sequence[Any] = ()) -> RankProgram:
    """The program of ``function`` on inputs ``x0, x1, …``; ``outside`` tensors are not registered."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from orchestrator.capture.lowering import Lowering
    from orchestrator.capture.recorder import Recorder, recording, reference

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(t) for t in (*tensors, *outside)]
    lowering = Lowering(lambda _group: ())
    recorder = Recorder()
    for name, ref in recorder.given({f"x{i}": fake for i, fake in enumerate(fakes[: len(tensors)])}).items():
        lowering.add_input(name, ref)
    with mode, recording(recorder):
        results = function(*fakes)
    lowering.run(recorder.nodes)
    results = results if isinstance(results, tuple | list) else (results,)
    return lowering.finish({f"y{i}": reference(r.detach()) for i, r in enumerate(results)})


def to_program(lowered: RankProgram) -> Program:
    ops = tuple(Op(d.out, d.name, d.ins, d.type, dict(d.attrs)) for d in lowered.drafts)
    program = rows.lowered(Program(lowered.inputs, ops, lowered.outputs), {}, None)
    check_program(program)
    return program


def agree(function: Function, *tensors: Any, tolerance: float = 1e-9) -> Program:
    """Assert that the lowered function computes what PyTorch computes, and return it."""
    program = to_program(lower(function, *tensors))
    values = interpreter.evaluate(program, {f"x{i}": t.detach().numpy() for i, t in enumerate(tensors)})
    expected = function(*(t.clone() for t in tensors))
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    for i, want in enumerate(expected):
        got = values[program.outputs[f"y{i}"]]
        assert got.shape == tuple(want.shape)
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=tolerance, atol=tolerance)
    return program


@pytest.fixture
def lowered() -> Function:
    return lower


@pytest.fixture
def agrees() -> Function:
    return agree


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    import torch

    torch.manual_seed(0)
    yield


def capture_example(definition: Definition) -> Plan:
    from orchestrator.capture import capture
    from orchestrator.emit import provable

    return capture(definition, jobs=2, root=MODELS, accept=provable)


def load_example(name: str, **settings: int) -> Definition:
    from orchestrator.capture.userfile import load_definition

    return load_definition(MODELS / name, settings)


@pytest.fixture(scope="session")
def models() -> Any:
    """The shipped module of the Llama model."""
    load_example("llama_uneven_tp2_fsdp2.py")
    return sys.modules["llama"]


@pytest.fixture(scope="session")
def small_llama(models: Any) -> Definition:
    config = models.Config(dim=16, ffn_dim=13, layers=1, heads=4, kv_heads=2, vocab=12)
    return models.definition("small", config, {"dp": 2, "tp": 2}, 4, 4)


@pytest.fixture(scope="session")
def small_llama_plan(small_llama: Definition) -> Plan:
    return capture_example(small_llama)


@pytest.fixture(scope="session")
def small_full(models: Any) -> Definition:
    """Replicas of uneven shards: two microbatches, ignored tokens, clipping, weight decay."""
    config = models.Config(dim=16, ffn_dim=13, layers=1, heads=4, kv_heads=2, vocab=12)
    mesh = {"rep": 2, "dp": 2, "tp": 2}
    return models.full_definition("full", config, mesh, 4, 4, models.Training(2, whole=True))


@pytest.fixture(scope="session")
def small_full_plan(small_full: Definition) -> Plan:
    return capture_example(small_full)


@pytest.fixture(scope="session")
def small_mlp() -> Definition:
    return load_example("mlp_handwritten.py", dim=4, hidden=8, rows=6)


@pytest.fixture(scope="session")
def small_mlp_plan(small_mlp: Definition) -> Plan:
    return capture_example(small_mlp)
