"""``tv-capture FILE.py --out PLAN``: 0, 1 a real run differs, 2 usage, 3 not capturable, 5 unusable file, 6 a
file cannot be read or written, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from certificates.endings import INTERRUPTED, Terminated, ending, told, version
from certificates.plan.writing import dump

from .errors import CaptureError, DefinitionError, DisagreementError, StepError
from .output import objection

#: Set to anything, Python's traceback of what failed in the user's code is printed too.
TRACEBACK = "TV_TRACEBACK"


Setting = bool | int | float | str
#: As Python writes them; all else is a text.
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?")


def _setting(text: str) -> tuple[str, Setting]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    if value in ("True", "False"):
        return key, value == "True"
    number = _NUMBER.fullmatch(value)
    return key, value if number is None else float(value) if number[1] or number[2] else int(value)


def extra() -> str:
    """How PyTorch is installed: by this checkout's name, as no index has the package."""
    root = Path(__file__).resolve().parents[2]
    here = str(root) if (root / "pyproject.toml").is_file() else "$REPO"
    where = "" if here != "$REPO" else ", where REPO is the path of the TrainVerify checkout"
    return f'pip install "{here}[torch]"{where}'


def _say(line: str) -> None:
    click.echo(line, err=True)


def _silent(_line: str) -> None:
    """No progress."""


@click.command(name="tv-capture")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Plan file to write; .gz compresses.")
@click.option("--force", is_flag=True, help="Overwrite --out even if it is no plan file.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Argument of the file's definition()."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Ranks traced at a time.")
@click.option(
    "--most", type=click.IntRange(min=1), default=64, show_default=True, help="Ranks traced of a large mesh."
)
@click.option("--list-unsupported", is_flag=True, help="Name all that cannot be captured, and write nothing.")
@click.option(
    "--run", "really_run", is_flag=True, help="Run the step in real processes and compare all numbers."
)
@click.option("--steps", type=click.IntRange(min=1), help="Consecutive steps of --run.  [default: 3]")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the numbers of --run.  [default: 0]")
@click.option("--traceback", is_flag=True, help="Show Python's traceback of what fails in FILE.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
@version
@ending("tv-capture")
def main(
    file: Path,
    out: Path | None,
    force: bool,
    settings: tuple[str, ...],
    jobs: int | None,
    most: int,
    list_unsupported: bool,
    really_run: bool,
    steps: int | None,
    seed: int | None,
    traceback: bool,
    quiet: bool,
) -> None:
    """Capture the training step that FILE defines (see docs/capture.md) as a plan."""
    if out is None and not list_unsupported:
        raise click.UsageError("--out is needed, or --list-unsupported")
    if (steps, seed) != (None, None) and not really_run:
        raise click.UsageError("--steps and --seed are for --run")
    problem = None if out is None else objection(out, file, force)
    if problem is not None:
        raise click.UsageError(problem)
    given = dict(_setting(s) for s in settings)
    with _interruptible():
        try:
            from ..emit import provable
            from .assemble import capture, obstacles
            from .elsewhere import elsewhere
            from .running import run, with_run
            from .userfile import load_definition
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            raise click.UsageError(f"PyTorch is missing; install the extra: {extra()}") from error
        try:
            definition = load_definition(file, given)
            if list_unsupported:
                found = obstacles(definition, jobs)
                if found is not None:
                    _refuse(found, traceback, sys.stdout)
                return
            report: Callable[[str], None] = _silent if quiet else _say
            with elsewhere(file, given) as other:
                plan = capture(
                    definition,
                    jobs=jobs,
                    most=most,
                    root=file.parent,
                    report=report,
                    accept=provable,
                    elsewhere=other.differs,
                )
            if really_run:
                compared = run(plan, definition, steps=3 if steps is None else steps, seed=seed or 0)
                plan = with_run(plan, compared)
                report(f"run: {compared}")
        except CaptureError as error:
            _refuse(error, traceback, sys.stderr)
        assert out is not None
        dump(plan, out)
    ops_count = sum(len(c.program.ops) for c in plan.classes)
    click.echo(f"{out}: {plan.mesh.ranks} ranks in {len(plan.classes)} classes, {ops_count} ops")


def _refuse(error: CaptureError, traceback: bool, stream: Any) -> NoReturn:
    problems = list(error.problems())
    texts = dict.fromkeys(p.traceback for p in problems if isinstance(p, StepError))
    shown = traceback or bool(os.environ.get(TRACEBACK))
    if shown:
        for text in texts:
            click.echo(text, file=stream)
    blocks = str(error)
    click.echo(f"tv-capture: {blocks}" if stream is sys.stderr else blocks, file=stream)
    if texts and not shown and any(p.instead is None for p in problems if isinstance(p, StepError)):
        click.echo("(--traceback shows where in Python it was raised)", file=stream)
    if isinstance(error, DisagreementError):
        sys.exit(1)
    sys.exit(5 if any(isinstance(p, DefinitionError) for p in problems) else 3)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the program with one line; children and half-written files go with it."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        code, word = told(stop) or (INTERRUPTED, "")
        click.echo(f"tv-capture: {word}, nothing is written", err=True)
        sys.exit(code)
