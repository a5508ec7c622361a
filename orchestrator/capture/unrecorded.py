"""What a dispatch mode does not see, found while a step is recorded: each is an error with the user's line.

Raw writes to a storage, addresses handed out to numpy, DLPack or ctypes, what other threads do (ops,
collectives, waits, joined or not), and writes to real tensors, of which a trace has no contents.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils.dlpack
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .asking import asked
from .deadlines import deadlines
from .errors import CaptureError, StateError
from .frames import is_users, runs_in, user_frame
from .group import Traced
from .reading import no_files
from .recorder import Node, Recorder
from .substituting import replaced
from .swallowed import told

#: Methods that write to a storage, or hand out its address, without an op.
_RAW_WRITES = {
    torch.UntypedStorage: ("__setitem__", "copy_", "fill_"),
    torch.TypedStorage: ("__setitem__", "copy_", "fill_"),
}
_ADDRESSES = {
    torch.Tensor: ("data_ptr", "__dlpack__"),
    torch.UntypedStorage: ("data_ptr",),
    torch.TypedStorage: ("data_ptr",),
    torch.utils.dlpack: ("to_dlpack",),
}
_IN_PLACE = "an op on the tensor itself: tensor.copy_(…), tensor.fill_(…), tensor[…] = …"


@contextmanager
def watching(files: bool = True) -> Iterator[None]:
    """While a step is recorded, what the recorder would not see is refused; ``files`` that it reads, too."""
    problems: list[CaptureError] = []

    def refuse(error: CaptureError) -> None:
        problems.append(error)  # a thread's are lost
        raise error

    with ExitStack() as patches:
        patches.enter_context(told())
        if files:
            patches.enter_context(no_files(refuse))
            patches.enter_context(asked(refuse))
            patches.enter_context(deadlines(refuse))
        for kinds, message in (
            (_RAW_WRITES, "writes to a storage behind the tensors that lie in it"),
            (_ADDRESSES, "asks for the memory of a tensor, of which a trace has none"),
        ):
            for kind, names in kinds.items():
                for name in names:
                    says = f"{kind.__name__}.{name} {message}"
                    patches.enter_context(replaced(kind, name, _refusing(says, refuse)))
        for kind, name in ((FakeTensorMode, "dispatch"), (Traced, "_event"), (Recorder, "waited")):
            patches.enter_context(replaced(kind, name, _one_thread(refuse)))
        patches.enter_context(replaced(threading, "excepthook", _without_refusals))
        yield
    if problems:
        raise problems[0]


def _refusing(says: str, refuse: Callable[[CaptureError], None]) -> Callable[[Any], Any]:
    def patch(original: Any) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            # PyTorch itself compares addresses and views storages as numpy; only the user's calls count.
            if is_users(runs_in(sys._getframe(1))) and _is_fake(self):
                refuse(StateError(says, frame=user_frame(), instead=_IN_PLACE))
            return original(self, *args, **kwargs)

        return method

    return patch


def _is_fake(item: Any) -> bool:
    if isinstance(item, torch.Tensor):
        return isinstance(getattr(item, "_local_tensor", item), FakeTensor)
    return bool(item.device.type == "meta")


def _one_thread(refuse: Callable[[CaptureError], None]) -> Callable[[Any], Any]:
    traced = threading.get_ident()

    def patch(original: Any) -> Any:
        def dispatch(self: Any, what: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != traced:
                refuse(
                    StateError(
                        "another thread works on tensors of the step, in no order that is known",
                        op=f"wait for work {what}" if isinstance(what, int) else str(what),
                        frame=user_frame() or user_frame(sys._current_frames().get(traced)),
                        instead="the same work in the step's own thread; a collective beside other "
                        "work is begun "
                        "with async_op=True, and waited for",
                    )
                )
            return original(self, what, *args, **kwargs)

        return dispatch

    return patch


def _without_refusals(original: Any) -> Any:
    """What ends a thread is told when the step is over."""

    def excepthook(arguments: Any) -> None:
        if not isinstance(arguments.exc_value, CaptureError):
            original(arguments)

    return excepthook


def real_writes(nodes: list[Node]) -> Iterator[StateError]:
    """Ops that write to a real tensor: one that was made outside the step and is no state."""
    for node in nodes:
        if any(ref.literal is not None for ref in node.writes):
            yield StateError(
                "the step writes to a tensor that is no parameter, buffer, gradient or optimizer state",
                op=node.op,
                frame=node.frame,
                instead="a buffer of the model (register_buffer): the next step finds it as this one left it",
            )
