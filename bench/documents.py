"""Writes what commands print into the documents: help into README.md, output into docs/tour.md.

python bench/documents.py          rewrite both (tests/test_readme.py compares them)

Commands are those of this tree, run in a scratch folder that has the examples. The table of README.md is
bench/measure.py's.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN = re.compile(r"```\n\$ (.*?)\n(.*?)```\n", re.DOTALL)
#: Numbers that move when the engine learns something.
NUMBERED = re.compile(r"stage (\d+) |obligations/(\d+)\.smt2")


def scripts() -> dict[str, str]:
    """Console scripts and the functions behind them."""
    found: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    return found


def environment(folder: Path) -> dict[str, str]:
    """``PATH`` starts with console scripts of this tree, installed or not, made in ``folder``."""
    for name, target in scripts().items():
        module, function = target.split(":")
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = {name!r}; "
        code += f"from {module} import {function}; {function}()"
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c {shlex.quote(code)} "$@"\n')
        script.chmod(0o755)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}


def shell(command: str, variables: dict[str, str], folder: Path) -> str:
    """What a command prints; ``AssertionError`` if it fails."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def helped(text: str, variables: dict[str, str]) -> str:
    """README with the help that the commands print."""
    before, start, rest = text.partition("<!-- help blocks -->\n")
    _, end, after = rest.partition("<!-- end -->")
    commands = [f"{name} --help" for name in scripts()]
    blocks = [f"```\n$ {command}\n{shell(command, variables, ROOT)}```\n\n" for command in commands]
    return before + start + "".join(blocks) + end + after


def follow(command: str, moved: dict[str, str]) -> str:
    """The command with the numbers that stages and files have now."""
    return re.sub(r"(--stage |obligations/)(\d+)", lambda m: m[1] + moved.get(m[2], m[2]), command)


def replayed(text: str, variables: dict[str, str], folder: Path) -> list[tuple[str, str, str]]:
    """Of every shown command in order: the command with present numbers, what was shown, what it prints."""
    moved: dict[str, str] = {}
    out = []
    for command, shown in SHOWN.findall(text):
        now = follow(command, moved)
        printed = shell(now, variables, folder)
        for there, here in zip(NUMBERED.findall(shown), NUMBERED.findall(printed), strict=False):
            moved |= {a: b for a, b in zip(there, here, strict=True) if a}
        out.append((now, shown, printed))
    return out


def main() -> None:
    readme, tour = ROOT / "README.md", ROOT / "docs" / "tour.md"
    with tempfile.TemporaryDirectory() as scripts_here, tempfile.TemporaryDirectory() as folder:
        variables = environment(Path(scripts_here))
        Path(folder, "examples").symlink_to(ROOT / "examples")
        readme.write_text(helped(readme.read_text("utf-8"), variables), encoding="utf-8")
        text = tour.read_text("utf-8")
        blocks = iter([f"```\n$ {now}\n{printed}```\n" for now, _, printed in
                       replayed(text, variables, Path(folder))])  # fmt: skip
        tour.write_text(SHOWN.sub(lambda _: next(blocks), text), encoding="utf-8")


if __name__ == "__main__":
    main()
