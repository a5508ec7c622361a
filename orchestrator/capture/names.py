"""Names of parameters and buffers in a plan: those of the single-device model, whatever wraps it on a rank.

PyTorch's wrappers hold the module that they wrap under a name of their own, which its own checkpoints leave
out as well (``torch.distributed.checkpoint.state_dict``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

#: Each kind of wrapper with the name under which it holds the module.
_WRAPPERS: tuple[tuple[type[nn.Module], str], ...] = (
    (DistributedDataParallel, "module"),
    (ActivationWrapper, "_checkpoint_wrapped_module"),
    (FullyShardedDataParallel, "_fsdp_wrapped_module"),
)


def parameters(model: nn.Module, *, tied: bool = False) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter with its name in the plan; a ``tied`` one under all its names, else under its first."""
    name_of = _unwrapped(model)
    return ((name_of(n), p) for n, p in model.named_parameters(remove_duplicate=not tied))


def buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every buffer with its name in the plan."""
    name_of = _unwrapped(model)
    return ((name_of(n), b) for n, b in model.named_buffers())


def _unwrapped(model: nn.Module) -> Callable[[str], str]:
    inner = {
        f"{path}.{held}" if path else held
        for path, module in model.named_modules()
        for kind, held in _WRAPPERS
        if isinstance(module, kind)
    }

    def name_of(name: str) -> str:
        parts = name.split(".")
        return ".".join(part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in inner)

    return name_of
