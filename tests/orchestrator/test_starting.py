"""Commands load what they are made of when they are called: loading it may fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench import documents

#: Packages that the modules behind the commands of ``pyproject.toml`` may not have loaded.
HEAVY = ("click", "networkx", "numpy", "torch", "z3", "cvc5", "orchestrator.cli", "checker.cli")


@pytest.mark.parametrize("target", documents.scripts().values())
def test_the_module_behind_a_command_is_light(target: str) -> None:
    module, function = target.split(":")
    code = f"import sys; from {module} import {function}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=documents.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
