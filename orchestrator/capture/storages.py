"""The bytes of a storage, of which a trace has none: whoever asks for them is refused before PyTorch fails.

On a storage without memory some methods raise what they never raise in a job, others end the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from .errors import StateError
from .frames import user_frame
from .substituting import by_user

#: Methods that need no bytes; those that :mod:`.unrecorded` speaks of; those that make another storage.
_HARMLESS = frozenset(
    (
        *("nbytes", "size", "element_size", "resizable", "resize_", "untyped", "get_device", "data_ptr"),
        *("_nbytes", "_size", "_element_size", "_resize_", "_weak_ref", "_free_weak_ref", "_expired"),
        *("_fix_weakref", "_set_cdata", "_maybe_wrap_index", "_pickle_storage_type", "_dtype", "dtype"),
        *("pickle_storage_type", "_get_legacy_storage_class", "is_shared", "_is_shared", "copy_", "fill_"),
        *("from_buffer", "_from_buffer", "from_file", "new", "is_pinned", "_new_wrapped_storage"),
    )
)
_DUNDERS = ("__getitem__", "__iter__", "__str__", "__repr__", "__copy__", "__deepcopy__", "__reduce__")
_INSTEAD = (
    "an op on the tensor itself; nothing that needs the values of a tensor: torch.where(condition, a, b) for "
    "`if`, or what is asked for as an entry of the batch"
)


@contextmanager
def bytes_refused() -> Iterator[None]:
    """A method that needs the bytes of a storage without any is a :class:`StateError` for the user."""
    with ExitStack() as patches:
        for kind in (torch.UntypedStorage, torch.TypedStorage):
            for name in dir(kind):
                public = not name.startswith(("__", "_new_")) and name not in _HARMLESS
                own = vars(kind).get(name)
                if (public or name in _DUNDERS) and not isinstance(
                    own, staticmethod | classmethod | property
                ):
                    method = getattr(kind, name, None)
                    if callable(method):
                        says = f"{kind.__name__}.{name}"
                        patches.enter_context(patch.object(kind, name, _refusing(says, method)))
            patches.enter_context(patch.object(kind, "device", property(_asked(kind))))
        yield


def _asked(kind: Any) -> Callable[[Any], torch.device]:
    original = kind.device

    def device(self: Any) -> torch.device:
        found: torch.device = original.__get__(self)
        if found.type == "meta" and by_user(sys._getframe(1)):
            raise StateError(
                f"{kind.__name__}.device says where the bytes of a tensor lie, of which a trace has none",
                frame=user_frame(),
                instead="the device of the tensor itself (tensor.device)",
            )
        return found

    return device


def _refusing(says: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if by_user(sys._getframe(1)) and self.device.type == "meta":
            raise StateError(
                f"{says} asks for the bytes of a tensor, of which a trace has none",
                frame=user_frame(),
                instead=_INSTEAD,
            )
        return original(self, *args, **kwargs)

    return method
