"""Which Python line of the user's runs now: the innermost frame outside libraries and this package."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
import typing_extensions

from .builder import Frame
from .per_class import per_class

_STDLIB = str(Path(sysconfig.get_path("stdlib")).resolve()) + "/"


def installed() -> tuple[str, ...]:
    """Folders of installed packages: of this environment, and of those that it sees, such as the system's."""
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    found += [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    return tuple(dict.fromkeys(str(Path(p).resolve()) + "/" for p in found))


#: This project is installed, wherever its folders lie.
PROJECT = tuple(
    f"{Path(__file__).resolve().parents[2]}/{name}"
    for name in ("certificates/", "checker/", "orchestrator/", "smtlib_emit/", "trainverify.py")
)
_PACKAGES = (*installed(), *PROJECT)
#: Frames of these are not the user's; those of models that are installed as packages are.
_LIBRARIES = (
    "<",
    *(str(Path(f).resolve().parent) + "/" for f in (torch.__file__, __file__)),
    typing_extensions.__file__,  # PyTorch's deprecated functions are wrapped by it
)
#: What runs a step: nothing that called it is the user's step.
_OWN = str(Path(__file__).resolve().parent) + "/"
#: But for what a step calls on its way to a backward pass.
_BETWEEN = f"{_OWN}device_threads.py"

#: ``Py_TPFLAGS_HEAPTYPE``
_MADE_WHEN_IT_RUNS = 1 << 9
#: Everything that a backward pass runs is called from here.
_ENGINE = torch.autograd.graph._engine_run_backward.__code__


@functools.cache
def is_users(name: str) -> bool:
    """Is this the file name of Python code outside Python's library, PyTorch and this package?"""
    return not name.startswith(_LIBRARIES) and (name.startswith(_PACKAGES) or not name.startswith(_STDLIB))


def users(module: object) -> bool:
    """Is this the name of a module outside Python's library, PyTorch and this package?"""
    found = sys.modules.get(module) if isinstance(module, str) else None  # Cython has something else there
    if not isinstance(module, str) or found is None:
        return False
    file = getattr(found, "__file__", None)
    if file is None and getattr(found, "__spec__", None) is not None:
        return False  # it is a part of Python
    package, _, inner = module.partition(".")
    return is_users(file) if file is not None else not inner or users(package)  # else code has made it


@per_class
def of_user(kind: type) -> bool:
    """Is this a class of the user's? One that a text made, which was run as code, says it is Python's own."""
    if kind.__module__ == "builtins":
        return bool(kind.__flags__ & _MADE_WHEN_IT_RUNS)
    return users(kind.__module__)


def is_installed(name: str) -> bool:
    """Is this the file name of Python code of an installed package?"""
    return name.startswith(_PACKAGES)


@functools.cache
def is_own(name: str) -> bool:
    """Is this the file name of the user's own code, and not of a package that is installed?"""
    return is_users(name) and not is_installed(name)


def written_in(function: FunctionType) -> str:
    """The file of a function's code; of code that was made of a text, that of the module that it runs in."""
    return _home(function.__code__, function.__globals__)


def runs_in(frame: FrameType) -> str:
    """The same of a frame's code."""
    return _home(frame.f_code, frame.f_globals)


def _home(code: CodeType, scope: Mapping[str, Any]) -> str:
    name = code.co_filename
    if not name.startswith("<") or name.startswith("<frozen "):
        return name
    of = scope.get("__name__")
    file = scope.get("__file__") or getattr(sys.modules.get(of or ""), "__file__", None)
    # Packages make modules for what they generate, and keep none of them.
    return str(file or (name[1:] if of is None or of in sys.modules else name))


def frames(engine: bool) -> tuple[Frame | None, Frame | None]:
    """The innermost frame of the user's code, and the next one in another file; with ``engine``, only what
    autograd's engine called."""
    frame: FrameType | None = sys._getframe(1)
    found: Frame | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            here = name, frame.f_lineno, frame.f_code.co_name
            if found is not None and name != found[0]:
                return found, here
            found = found or here
        elif (engine and frame.f_code is _ENGINE) or (found is not None and _runs_steps(name)):
            break
        frame = frame.f_back
    return found, None


def _runs_steps(name: str) -> bool:
    return name.startswith(_OWN) and name != _BETWEEN


def waits_at_use() -> bool:
    """Is this a wait that PyTorch adds because it is traced? A job waits where the result is used first.

    So it is with what functional collectives give to the user's code, and ``redistribute(async_op=True)``.
    """
    frame: FrameType | None = sys._getframe(1)
    wrapped = False
    while frame is not None and not wrapped:
        wrapped, frame = frame.f_code.co_name == "_maybe_wrap_tensor", frame.f_back
    while frame is not None and runs_in(frame).endswith("_functional_collectives.py"):
        frame = frame.f_back
    if frame is not None and not is_users(frame.f_code.co_filename):
        while frame is not None and frame.f_code.co_name != "redistribute_local_tensor":
            frame = frame.f_back
        return wrapped and frame is not None and bool(frame.f_locals["async_op"])
    return wrapped


def user_frame(frame: FrameType | None = None) -> Frame | None:
    """The innermost Python frame of the user's code, from ``frame`` or the caller on."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return name, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def begins_backward() -> bool:
    """Is a gradient made with which a backward pass begins?"""
    return _inside("_make_grads")


def inside_engine() -> bool:
    """Does the engine of the backward pass call from C++, with no line of the user in between?"""
    return _inside("_engine_run_backward")


def _inside(function: str) -> bool:
    """Does a library's function of this name run, with no line of the user in between?"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False
