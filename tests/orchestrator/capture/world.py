"""Steps that talk, captured and compared with real gloo processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from certificates.plan.plan import Plan
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.group import process_group
from orchestrator.capture.recorder import Node, Recorder, recording
from orchestrator.evaluating import interpreter

#: Elements of the one output, which is padded: the specification must have an output of this shape.
LENGTH = 160
#: What a rank does with its rows, on a world that it may ask for groups.
Talk = Callable[[torch.Tensor, Any], Mapping[str, torch.Tensor]]


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))


class Member(nn.Module):
    """The model of a rank, which remembers its device mesh and a second communicator over the world."""

    def __init__(self, model: nn.Module, mesh: Any) -> None:
        super().__init__()
        self.w, self.mesh = model.w, mesh
        self.again = dist.new_group()


def one_layer(name: str, step: Callable[..., dict[str, torch.Tensor]]) -> Definition:
    """A step of one small layer, the same on both ranks, by plain gradient descent."""
    return Definition(
        name=name,
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, _: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        step=step,
        batch={"x": Batch((4, 3))},
    )


def talking(talk: Talk, *, rows: int = 8, mesh: Mapping[str, int] | None = None) -> Definition:
    """A definition whose parallel step is ``talk`` on this rank's rows; each rank sees rows of its own."""
    mesh = mesh or {"dp": 2, "tp": 2}

    def alone(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"y": (batch["x"].sum() * model.w.sum()).expand(LENGTH).clone()}

    def parallel(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        said = [t.detach().reshape(-1) for t in talk(batch["x"], model).values()]
        rest = torch.zeros(LENGTH - sum(t.numel() for t in said))
        return {"y": torch.cat([*said, rest, model.w.detach()])[:LENGTH]}

    return Definition(
        name="talk",
        mesh=mesh,
        build=Weight,
        parallelize=Member,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=alone,
        parallel_step=parallel,
        batch={"x": Batch((rows, 3), shard=dict.fromkeys(mesh, 0))},
        layouts={"w": {}},
    )


def recorded(act: Callable[[torch.Tensor], object], *, size: int = 2) -> list[Node]:
    """The nodes of what rank 0 of a world does with four numbers, recorded in this process."""
    recorder = Recorder()
    with process_group(0, size), FakeTensorMode(), recording(recorder):
        act(torch.zeros(4))
    return recorder.nodes


def talked(talk: Talk, **options: Any) -> Plan:
    return capture(talking(talk, **options), jobs=1)


def run_ranks(
    definition: Definition, inputs: list[dict[str, Any]], folder: Path
) -> dict[int, dict[str, Any]]:
    """The parallel step as real processes with these inputs."""
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=_rank, args=(rank, definition, x, str(folder), queue), daemon=True)
        for rank, x in enumerate(inputs)
    ]
    for process in processes:
        process.start()
    found = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    for outcome in found.values():
        if isinstance(outcome, str):
            raise RuntimeError(outcome)
    return found


def _rank(rank: int, definition: Definition, inputs: Any, folder: str, queue: Any) -> None:
    torch.set_num_threads(1)
    size = functools.reduce(lambda a, b: a * b, definition.mesh.values())
    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(f"{folder}/store", size))
    try:
        mesh = dist.init_device_mesh(
            "cpu", tuple(definition.mesh.values()), mesh_dim_names=tuple(definition.mesh)
        )
        model = definition.parallelize(definition.build(), mesh)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(inputs[f"params.{name}"]))
        batch = {
            name: torch.from_numpy(inputs[f"batch.{name}"]).to(item.dtype)
            for name, item in definition.batch.items()
        }
        step = definition.parallel_step or definition.step
        results = step(model, definition.optimizer(model.parameters()), batch)
        queue.put((rank, {n: t.detach().numpy().copy() for n, t in results.items()}))
        dist.barrier()
    except Exception as error:
        queue.put((rank, repr(error)))
    dist.destroy_process_group()


def agrees_with_gloo(talk: Talk, folder: Path, **options: Any) -> Plan:
    """Capture ``talk``; on random numbers the plan's ranks compute what the processes do."""
    definition = talking(talk, **options)
    plan = capture(definition, jobs=2)
    rng = np.random.default_rng(0)
    inputs = interpreter.scatter_inputs(plan, interpreter.random_inputs(plan, rng), rng)
    real = run_ranks(definition, inputs, folder)
    for rank, outputs in enumerate(interpreter.run_plan(plan, inputs)):
        for name, value in real[rank].items():
            np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-6, err_msg=f"{rank} {name}")
    return plan
