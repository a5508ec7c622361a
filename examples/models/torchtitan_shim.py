"""What torchtitan 0.3.0 needs to be imported and run on a CPU with stable PyTorch 2.13; imported before it.

Nothing here touches what the model computes: Triton kernels (used by mixture of experts only) are named but
never run, and torchtitan is told that its device is the CPU. ``SHIMS`` is listed in the plan.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch._inductor.compile_fx  # before the stub: inductor asks whether Triton is installed

SHIMS = (
    "torchtitan: an empty module stands for triton, whose kernels the dense model does not use",
    "torchtitan: torchtitan.tools.utils.device_type is 'cpu'",
    "torchtitan: its SDPA module stands for flex attention with a causal mask; no activation checkpointing",
)
SCATTER_SHIM = "torchtitan: scatter_add stands for torchtitan::deterministic_scatter_add"
PIPELINE_SHIMS = (
    "torchtitan: its stages are told a microbatch's shapes, which they would send round in the first step",
    "torchtitan: PyTorch 2.13's schedules split a rank's rows, where torchtitan hands them microbatches",
)


class _Stub(types.ModuleType):
    """A module whose attributes are decorators that return their function, or further stubs."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self


def install() -> None:
    assert torch._inductor is not None
    for name in ("triton", "triton.language", "triton.language.extra"):
        sys.modules.setdefault(name, _Stub(name))
    import torchtitan.tools.utils

    torchtitan.tools.utils.device_type = "cpu"


@contextmanager
def shapes_of_stages(tokens: torch.Tensor, hidden: torch.Tensor, logits: torch.Tensor) -> Iterator[None]:
    """Stages that torchtitan makes know a microbatch's tokens, hidden states and logits (shape and type).

    Processes that run for real on a CPU, in other types than a GPU would, send them round in the first step.
    """
    from torchtitan.distributed import pipeline_parallel

    if torch.distributed.get_backend() == "gloo":
        yield
        return
    kind = pipeline_parallel.PipelineStage

    def stage(module: Any, index: int, count: int, *args: Any, **kwargs: Any) -> Any:
        shapes = {
            "input_args": tokens if index == 0 else hidden,
            "output_args": logits if index == count - 1 else hidden,
            "input_grads": (None,) if index == 0 else hidden.detach(),
            "output_grads": (None,) if index == count - 1 else hidden.detach(),
        }
        return kind(module, index, count, *args, **shapes, **kwargs)

    pipeline_parallel.PipelineStage = stage
    try:
        yield
    finally:
        pipeline_parallel.PipelineStage = kind


install()
