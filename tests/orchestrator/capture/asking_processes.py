"""What steps ask of their process and its warnings, in a file without pytest among its globals."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def kept(category: type[Warning], said: str = "said") -> bool:
    """Is a warning of this kind among those that are kept?"""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        warnings.warn(said, category, stacklevel=1)
    return not found


def raised() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("said", DeprecationWarning, stacklevel=1)
        except DeprecationWarning:
            return False
    return True


def beside(start: Callable[[], Any]) -> bool:
    try:
        start()
    except Exception:
        return True
    return False


#: What a trace would answer otherwise than a job: each says no in a job.
OF_TRACES: Mapping[str, Callable[[Tensor], bool]] = {
    "a parent": lambda t: multiprocessing.parent_process() is not None,
    "a child": lambda t: multiprocessing.current_process().name != "MainProcess",
    "a daemon": lambda t: multiprocessing.current_process().daemon,
    "a class": lambda t: type(multiprocessing.current_process()).__name__ != "_MainProcess",
    "a way to start": lambda t: multiprocessing.get_start_method(allow_none=True) is not None,
    "no garbage": lambda t: not gc.isenabled(),
    "no NCCL": lambda t: not dist.is_nccl_available() or not dist.is_gloo_available(),
    "no backend": lambda t: not dist.is_backend_available("NCCL"),
    "no interrupts": lambda t: signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    "a module": lambda t: t.__module__ != "torch.nn.parameter",
    "of a gradient": lambda t: t.grad.__module__ != "torch" or t.grad.__doc__ is not None,
    "a text": lambda t: "Meta tensors" in (t.__doc__ or ""),
    "a warning": lambda t: kept(UserWarning),
    "of what is to come": lambda t: kept(FutureWarning),
    "of what is old": lambda t: kept(DeprecationWarning),
    "of fakes": lambda t: kept(UserWarning, "a FakeTensor"),
    "an error": lambda t: raised(),
    "a filter": lambda t: any(f[0] == "ignore" and f[2] is FutureWarning for f in warnings.filters),
}


def off_and_on(t: Tensor) -> bool:
    """What the code has set it is told: it says yes."""
    gc.disable()
    off = not gc.isenabled()
    gc.enable()
    return off and gc.isenabled()


def keeps_of_ops(t: Tensor) -> bool:
    with warnings.catch_warnings(record=True) as found:
        t.var()
    return bool(found)


def shows_by_itself(t: Tensor) -> bool:
    found: list[object] = []
    with warnings.catch_warnings():
        warnings.showwarning = lambda *said: found.append(said)
        t.var()
    return bool(found)


def ignores(t: Tensor) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t.var()
    return False


def starts(t: Tensor) -> bool:
    return beside(multiprocessing.Process(target=print).start)


def starts_several(t: Tensor) -> bool:
    return beside(lambda: multiprocessing.Pool(1))


def asking(asks: Callable[[Any], bool]) -> Callable[[Any, Any, Any], dict[str, Tensor]]:
    """A step that takes another gradient where the answer is yes."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        F.mse_loss(model(batch["x"]), batch["x"]).backward()
        if asks(model.weight):
            model.weight.grad.mul_(31)
        optimizer.step()
        optimizer.zero_grad()
        return {}

    return step
