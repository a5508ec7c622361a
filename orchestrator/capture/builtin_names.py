"""Python's own names as the user's modules see them, where some of them stand for something else.

A name that a trace puts among the variables of a module is one of them to whoever looks: ``globals()``,
``vars(module)``, ``dir(module)``. So modules of the user's are run with names of Python's that are theirs
alone (``__builtins__``), from the file that is loaded on; there something else stands for ``type`` while they
are traced. Modules that were there before, and installed packages, are told by their variables.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import machinery
from types import ModuleType
from typing import Any
from unittest.mock import patch

from .frames import is_own

#: What all modules of the user's have in place of the variables of ``builtins``.
THEIRS: dict[str, Any] = {}
_standing: set[str] = set()


@contextmanager
def given_to_modules() -> Iterator[None]:
    """Modules of the user's that are loaded meanwhile have names of Python's of their own."""
    THEIRS.update((name, item) for name, item in vars(builtins).items() if name not in _standing)
    loader: Any = machinery.SourceFileLoader
    original = loader.exec_module

    def exec_module(self: Any, module: ModuleType) -> None:
        file = getattr(module, "__file__", None) or "<"
        if is_own(file):
            vars(module).setdefault("__builtins__", THEIRS)
        original(self, module)

    with patch.object(loader, "exec_module", exec_module):
        yield


def has_theirs(variables: Mapping[str, Any]) -> bool:
    """Is it a module that has them?"""
    return variables.get("__builtins__") is THEIRS


@contextmanager
def stood_for(names: Mapping[str, Any]) -> Iterator[None]:
    """In such modules these stand for Python's own."""
    before = {name: THEIRS.get(name) for name in names}
    _standing.update(names)
    THEIRS.update(names)
    try:
        yield
    finally:
        _standing.difference_update(names)
        THEIRS.update(before)
