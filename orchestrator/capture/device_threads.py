"""Backward passes run on threads of autograd's own, one for each device.

In a trace, which has no device, they run on the thread of the step.

What a step has put into a ``threading.local`` or a ``ContextVar``, a hook or the ``backward`` of a function
does not find in a job. So while a backward pass is traced, what such objects hold for this thread is put
aside, and what they hold for the other thread is there; that stays from one backward pass to the next.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from types import ModuleType
from typing import Any

import torch

from .errors import StateError
from .frames import is_own, user_frame
from .scopes import Kept
from .substituting import Place, by_user, substituted

_LOCAL: Any = threading.local
_ASKED = (
    "{} asks on which thread a backward pass runs: in a job on one of the engine's, in a trace on the step's"
)
_SET = "the step sets a threading.local before a backward pass, which finds it unset in a job"
_INSTEAD = "an attribute of ctx, of the module or of the tensor, which all threads see"
#: How Python names what a ``threading.local`` holds for a thread, among all that it keeps for this thread.
_KEY = "thread.local."
_get: Any = ctypes.pythonapi.PyThreadState_GetDict
_get.restype = ctypes.c_void_p


class _Other:
    """The engine's thread."""

    def __init__(self) -> None:
        self.context, self.locals, self.runs = Context(), dict[str, object](), False

    def run(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call as if on this thread."""
        if self.runs:
            return call(*args, **kwargs)
        kept, librarys = _keeps(), _of_libraries()
        ours = _taken(kept, librarys)
        kept.update(self.locals)
        self.runs = True
        try:
            return self.context.run(call, *args, **kwargs)
        finally:
            self.runs = False
            self.locals = _taken(kept, librarys)
            kept.update(ours)


_other = _Other()


@contextmanager
def threads_of_the_engine() -> Iterator[None]:
    """Backward passes run as if on a thread of their own; who asks there which one it is is refused."""
    global _other
    _other = _Other()
    engine = torch.autograd.graph, "_engine_run_backward"
    asked = ("current_thread", "currentThread", "get_ident")
    changes: dict[Place, Callable[[Any], Any]] = {engine: _elsewhere}
    changes |= {(threading, name): _asking(name) for name in asked}
    with substituted(changes | {(torch.autograd, engine[1]): _elsewhere}):
        yield


def held_for_the_engine(value: Any) -> object:
    """What a ``threading.local`` or a ``ContextVar`` holds for the engine's thread; None, if nothing."""
    if isinstance(value, ContextVar):
        return _other.context.get(value)
    if not SWAPS or _other.runs or _key(value) not in _other.locals:
        return None
    return dict(_other.run(vars, value))


def _elsewhere(original: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not SWAPS and any(vars(x) for x in _locals_of_the_user()):
            raise StateError(_SET, frame=user_frame(), instead=_INSTEAD)
        return _other.run(original, *args, **kwargs)

    return run


def _asking(name: str) -> Callable[[Any], Any]:
    def change(original: Any) -> Any:
        def ask() -> Any:
            if _other.runs and by_user(sys._getframe(1)):
                said = _ASKED.format(f"threading.{name}()")
                raise StateError(said, frame=user_frame(), instead="what a job does, without the question")
            return original()

        return ask

    return change


def _keeps() -> dict[str, object]:
    """What Python keeps for this thread; its function lends the dictionary, and counts no reference to it."""
    kept: dict[str, object] = ctypes.cast(_get(), ctypes.py_object).value
    return kept


def _key(local: object) -> str:
    return f"{_KEY}{id(local):#x}"


def _taken(kept: dict[str, object], but: frozenset[str]) -> dict[str, object]:
    """What locals hold for this thread, taken away; those of libraries keep it, for their trace goes on."""
    return {key: kept.pop(key) for key in list(kept) if str(key).startswith(_KEY) and key not in but}


def _of_libraries() -> frozenset[str]:
    return frozenset[str]().union(*map(_locals, _libraries(sys.modules)))


@Kept
def _libraries(modules: Mapping[str, Any]) -> tuple[ModuleType, ...]:
    files = (
        (m, getattr(m, "__file__", None) or "<") for m in list(modules.values()) if type(m) is ModuleType
    )
    return tuple(m for m, file in files if not is_own(file))


@Kept
def _locals(module: ModuleType) -> frozenset[str]:
    return frozenset(_key(item) for item in list(vars(module).values()) if issubclass(type(item), _LOCAL))


def _locals_of_the_user() -> Iterator[Any]:
    librarys = _of_libraries()
    found = (x for x in gc.get_objects() if issubclass(type(x), _LOCAL))
    return (x for x in found if _key(x) not in librarys)


def _is_kept_so() -> bool:
    """Does this Python keep locals where they are looked for? Up to 3.12 it does."""
    probe: Any = threading.local()
    probe.held = True
    return _key(probe) in _keeps()


SWAPS = _is_kept_so()
