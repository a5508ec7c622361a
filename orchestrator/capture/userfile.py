"""Loads the user's Python file and takes its definition."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .beside import begun_outside
from .builtin_names import given_to_modules
from .callers import begun_as
from .definition import Definition
from .environment import while_loading
from .errors import CaptureError, DefinitionError, Frame
from .kernels import kernels_stay
from .launched import on_a_machine_of_a_job
from .refusals import frame_of, refused, scalers_noted, sentence

_PROTOCOL = "definition = Definition(…), or a function that returns one (docs/capture.md)"


def load_definition(path: Path, settings: Mapping[str, bool | int | float | str] | None = None) -> Definition:
    """Run ``path`` and return its ``definition``, or what that returns when called with ``settings``.

    The file's directory is put on the import path, so that it can import its neighbours. A file that
    fails, or that defines none, is a :class:`DefinitionError` with the line.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise DefinitionError(f"{path} is not a Python file", instead="a file whose name ends in .py")
    sys.path.insert(0, str(path.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    top = (str(path), 1, "")
    try:
        with _loading(path):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error
    if not hasattr(module, "definition"):
        raise DefinitionError(f"{path} defines no `definition`", frame=top, instead=_PROTOCOL)
    found = module.definition
    if callable(found):
        frame = _home(found) or top
        _check_settings(found, settings or {}, frame)
        try:
            with _loading(path):
                found = found(**(settings or {}))
        except (Exception, SystemExit) as error:
            raise _failed(path, error) from error
        what = "the function `definition` returns"
    elif settings:
        message = f"{path}: definition is no function, so it takes no settings"
        raise DefinitionError(message, instead="no --set, or `def definition(…): return Definition(…)`")
    else:
        frame, what = top, "`definition` is"
    if not isinstance(found, Definition):
        kind = "None" if found is None else f"a {type(found).__name__}"
        message = f"{path} defines no `definition` of ours: {what} {kind}"
        raise DefinitionError(message, frame=frame, instead=_PROTOCOL)
    return found


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    process = on_a_machine_of_a_job(), begun_as(str(path)), begun_outside()
    with ExitStack() as stack:
        for each in (while_loading(), scalers_noted(), kernels_stay(), given_to_modules(), *process):
            stack.enter_context(each)
        yield


def _failed(path: Path, error: BaseException) -> CaptureError:
    """A file that cannot be run: its own innermost line, and the message in one sentence."""
    if isinstance(error, DefinitionError):
        return error.at(frame_of(error))
    told = refused(error)
    said = sentence(error) if told.instead is None else told.message
    instead = told.instead or _import_advice(error)
    return DefinitionError(f"{path} failed: {said}", frame=told.frame, instead=instead)


def _import_advice(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} beside PyTorch, or put the file of that name into the same folder"
    return None


def _home(function: Callable[..., object]) -> Frame | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno, "")


def _check_settings(function: Callable[..., object], settings: Mapping[str, object], frame: Frame) -> None:
    """Every setting is a parameter, and every parameter without a default is set."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = "it takes " + (", ".join(names) if names else "none")
    unknown = sorted(set(settings) - set(names))
    if unknown:
        raise DefinitionError(f"definition() has no setting {', '.join(unknown)}; {takes}", frame=frame)
    needed = [p.name for p in parameters if p.default is p.empty and p.name in names]
    missing = [name for name in needed if name not in settings]
    if missing:
        raise DefinitionError(
            f"definition() needs {', '.join(missing)}; {takes}",
            frame=frame,
            instead=" ".join(f"--set {name}=VALUE" for name in missing),
        )
