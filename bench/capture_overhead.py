"""What recording costs: the trace of one rank against plain fake-tensor execution of the same three steps.

python bench/capture_overhead.py examples/models/llama3_8b_2l_tp2_fsdp2.py --rank 0 --set layers=8

Both run one after the other in forked children of one process, so that imports count for neither; seconds are
of the processor. The plain run builds, parallelises and steps the same model in the same process group.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from certificates.plan.plan import Mesh
from orchestrator.capture import Definition
from orchestrator.capture.environment import as_rank
from orchestrator.capture.processes import quiet
from orchestrator.capture.shims import capturable_on_cpu, exact_norm_shares, symbolic_hyperparameters
from orchestrator.capture.tracing import local_shape, trace
from orchestrator.capture.userfile import load_definition

#: One that settles the states and two that are recorded (docs/capture.md).
STEPS = 3


def plain(definition: Definition, rank: int) -> None:
    """Build, parallelise and run the steps, with nothing of the capture but what a CPU needs."""
    mesh = Mesh(dict(definition.mesh))
    with as_rank(rank, mesh.ranks):
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            model = definition.build()
        axes, sizes = tuple(mesh.axes), tuple(mesh.axes.values())
        model = definition.parallelize(model, dist.init_device_mesh("cpu", sizes, mesh_dim_names=axes))
        optimizer = definition.optimizer(model.parameters())
        step = definition.parallel_step or definition.step
        with fake:
            symbolic_hyperparameters(optimizer)
        with capturable_on_cpu(), exact_norm_shares(), fake:
            for _ in range(STEPS):
                batch = {
                    name: torch.zeros(local_shape(definition, name, True), dtype=item.dtype)
                    for name, item in definition.batch.items()
                }
                step(model, optimizer, batch)


def recorded(definition: Definition, rank: int) -> None:
    trace(definition, rank)


def seconds(work: Callable[[Definition, int], None], definition: Definition, rank: int) -> float:
    """Seconds of the processor that ``work`` takes in a forked child."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_timed, args=(work, definition, rank, theirs))
    child.start()
    theirs.close()
    taken: float = ours.recv()
    child.join()
    return taken


def _timed(
    work: Callable[[Definition, int], None], definition: Definition, rank: int, link: Connection
) -> None:
    gc.disable()  # as in a capture
    torch.set_num_threads(1)
    with quiet(repeated=True):
        start = time.process_time()
        work(definition, rank)
        link.send(time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--times", type=int, default=3, help="of each, alternating; the least counts (3)")
    options = parser.parse_args()
    given = (word.partition("=") for word in options.set)
    settings = {key: int(value) if value.isdigit() else value for key, _, value in given}
    definition = load_definition(options.file, settings)
    pairs = [[seconds(w, definition, options.rank) for w in (plain, recorded)] for _ in range(options.times)]
    least = [min(column) for column in zip(*pairs, strict=True)]
    print(f"plain {least[0]:.1f} s, recorded {least[1]:.1f} s: {least[1] / least[0]:.2f} times")


if __name__ == "__main__":
    main()
