"""Loads the user's Python file and takes its definition."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from .definition import Definition
from .errors import DefinitionError


def load_definition(path: Path, settings: Mapping[str, int | str] | None = None) -> Definition:
    """Run ``path`` and return its ``definition``, or what that returns when called with ``settings``.

    The file's directory is put on the import path, so that it can import its neighbours. A file that
    fails, or that defines none, is a :class:`DefinitionError`.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise DefinitionError(f"{path} is not a Python file")
    sys.path.insert(0, str(path.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
        found = getattr(module, "definition", None)
        if callable(found):
            found = found(**(settings or {}))
        elif settings:
            raise DefinitionError(f"{path}: definition is no function, so it takes no settings")
    except DefinitionError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}"
        raise DefinitionError(f"{path} failed at line {last.lineno}: {what}") from error
    if not isinstance(found, Definition):
        raise DefinitionError(f"{path} defines no `definition`: a Definition or a function that returns one")
    return found
