"""PyTorch's DistributedDataParallel as it runs: its C++ Reducer works on the fake tensors of a trace.

What the Reducer keeps for itself stays real (:mod:`.bookkeeping`). Everything else, buckets, copies, factors,
collectives and hooks, passes through the recorder like any other op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
import torch.nn.parallel.distributed as ddp_module
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from .bookkeeping import BOOK
from .errors import GroupError
from .frames import user_frame
from .missing import OF_BATCHES
from .work import held_by_reducer

_EVEN = "batches of equal size on all ranks, without join()"
_AUTOCAST = "torch.autocast in the step, or modules converted with .to(torch.bfloat16)"
_AFTER = "optimizer.step() after backward()"


def built() -> bool:
    """Was a model wrapped in this world? Its buckets are made anew in its first steps."""
    return BOOK.models > 0


@contextmanager
def reducers() -> Iterator[None]:
    """While a world exists, DistributedDataParallel can be made and run in it."""
    BOOK.clear()
    with ExitStack() as stack:
        _replace(stack, DistributedDataParallel, "__init__", _constructor)
        _replace(stack, DistributedDataParallel, "join", _refused("DistributedDataParallel.join", _EVEN))
        _replace(stack, nn.SyncBatchNorm, "forward", _refused("SyncBatchNorm", OF_BATCHES))
        # It asks for CUDA and NCCL before it accepts a hook in half precision; a trace needs neither.
        _replace(stack, DistributedDataParallel, "_check_comm_hook", lambda _: lambda self, hook: None)
        for owner, name in (
            (dist.Reducer, "_rebuild_buckets"),
            (dist.Reducer, "_set_static_graph"),
            (ddp_module, "_verify_param_shape_across_processes"),
            (dist, "Reducer"),
        ):
            _replace(stack, owner, name, _building)
        _replace(stack, dist, "_register_comm_hook", _hooked)
        _replace(stack, DistributedDataParallel, "_register_builtin_comm_hook", _builtin)
        yield


def _replace(stack: ExitStack, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    stack.callback(setattr, owner, name, original)


def _building(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with BOOK.building():
            return original(*args, **kwargs)

    return call


def _refused(what: str, instead: str) -> Callable[[Any], Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise GroupError(f"{what} cannot be captured", frame=user_frame(), instead=instead)

    return lambda _original: refuse


def _constructor(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Inside the fake mode of the parameters, so that buckets are fake, too."""
        parameters = list(module.parameters())
        if kwargs.get("mixed_precision") is not None:
            _refused("DistributedDataParallel(mixed_precision=…)", _AUTOCAST)(None)()
        if any(hasattr(p, "_in_backward_optimizers") for p in parameters):
            _refused("an optimizer in the backward pass of DistributedDataParallel", _AFTER)(None)()
        fake = next((p.fake_mode for p in parameters if isinstance(p, FakeTensor)), None)
        BOOK.models += 1
        with ExitStack() as stack:
            if fake is not None:
                stack.enter_context(fake)
            stack.enter_context(BOOK)
            original(self, module, *args, **kwargs)

    return init


def _hooked(original: Callable[..., None]) -> Callable[..., None]:
    """The future that a hook returns is waited for by the Reducer."""

    def register(reducer: Any, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        def noted(state: Any, bucket: Any) -> Any:
            future = hook(state, bucket)
            held_by_reducer(future)
            return future

        original(reducer, state, noted)

    return register


def _builtin(original: Callable[..., None]) -> Callable[..., None]:
    """The built-in compression insists on a future made in C++; the hook in Python says the same ops."""

    def register(self: Any, kind: Any) -> None:
        if kind == dist.BuiltinCommHookType.FP16_COMPRESS:
            self.register_comm_hook(self.process_group, fp16_compress_hook)
        else:
            original(self, kind)

    return register
