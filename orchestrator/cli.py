"""``tv-emit`` and ``tv-verify``: from a plan file to a certificate, and to a verdict about it.

Exit codes: 0 proved, 1 refuted or invalid, 2 usage, 3 unknown or incomplete, 4 solver missing, 5 malformed,
6 a file cannot be read or written, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from certificates.bundle.about import FIELDS, checked_about, read_about
from certificates.bundle.bundle import NotABundle
from certificates.canonical import read_bytes
from certificates.endings import FAILED, INTERRUPTED, Terminated, ending, scratch, told, version
from certificates.errors import FormatError
from certificates.plan.reading import load
from certificates.plan.writing import dumps
from certificates.words import folded, one_line

from .children import run_checker
from .emit import emit
from .errors import ForeignFile, NoAnswer, SolverMissing, Unaccepted
from .progress import Progress

_Main = Callable[..., None]
_OPTIONS = (
    click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path)),
    click.option("--jobs", type=click.IntRange(1, 256), help="Solver processes at a time [default: cores]."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    click.option("--quiet", is_flag=True, help="No progress on standard error."),
    click.option(
        "--witness-seconds", type=click.FloatRange(0), default=30.0, show_default=True,
        help="How long to look for a witness against outputs without a proof. Counted in steps, so that "
        "every machine finds the same.",
    ),
    click.option("--force", is_flag=True, help="Replace the bundle of another plan."),
    version,
)  # fmt: skip


def _about_options(command: _Main) -> _Main:
    """``--about FILE`` and an option for each thing that can be said."""
    for name, what in reversed(FIELDS.items()):
        command = click.option(f"--about-{name}", metavar="TEXT", help=f"Say of the run: {what}.")(command)
    return click.option(
        "--about", "about_file", type=click.Path(path_type=Path, dir_okay=False),
        help="A JSON object of what is said of the run; the options below add to it. Not checked.",
    )(command)  # fmt: skip


def _about(file: Path | None, said: dict[str, str | None]) -> dict[str, str]:
    """What the file says, and the options, which win."""
    found = read_about(read_bytes(file), str(file)) if file else {}
    words = {name.removeprefix("about_"): value for name, value in said.items() if value is not None}
    return found | checked_about(words, "--about-...")


def _common(command: _Main) -> _Main:
    """The argument and the options that both commands have."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class _Stop(Exception):
    """The command ends early, with this exit code and one line."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code, self.line = code, line


@click.command(name="tv-emit")
@_common
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The bundle: a folder, or an archive X.tar."
)
@click.option("--no-solve", is_flag=True, help="Write all obligations, solve none; no solver is needed.")
@click.option(
    "--answers", type=click.Path(path_type=Path, dir_okay=False),
    help="Keep answers and lemmas in this file and use those it has: later, only what changed is done.",
)  # fmt: skip
@click.option(
    "--core-solver", metavar="COMMAND",
    help="SMT-LIB solver to ask for unsat cores, given a file as its last word [default: z3, in process].",
)  # fmt: skip
@_about_options
@ending("tv-emit")
def emit_main(
    plan_path: Path,
    jobs: int | None,
    as_json: bool,
    quiet: bool,
    witness_seconds: float,
    force: bool,
    out: Path,
    no_solve: bool,
    answers: Path | None,
    core_solver: str | None,
    about_file: Path | None,
    **said: str | None,
) -> None:
    """Write a certificate bundle for the plan file PLAN.

    A run that was interrupted continues from BUNDLE.journal. tv-check decides whether the bundle holds.

    Exit codes: 0 every output is proved (with --no-solve: has all its obligations); 1 an output is refuted;
    2 usage; 3 an output is not proved; 4 solver missing; 5 malformed plan; 6 a file cannot be written;
    130 interrupted; 143 terminated.
    """
    if no_solve and core_solver is not None:
        raise click.UsageError("--no-solve asks no solver, so there is nothing for --core-solver to do")
    try:
        with _guarded():
            plan, progress, about = load(plan_path), _progress("tv-emit", quiet), _about(about_file, said)
            done = emit(
                plan, out, solve=not no_solve, jobs=jobs, witness_seconds=witness_seconds, progress=progress,
                answers=answers, core_solver=core_solver, about=about, force=force,
            )  # fmt: skip
    except _Stop as stop:
        _finish(stop.code, [stop.line], {}, as_json)
    else:
        verdicts = (f"  {v.verdict:8} {v.plan}{': ' + v.reason if v.reason else ''}" for v in done.verdicts)
        lines = folded(list(verdicts))
        lines.append(f"{done.bundle}: {done.obligations} obligations in {done.stages} stages")
        lines += [f"schedule: {done.schedule}"] if done.schedule else []
        _finish(done.exit_code, [*lines, done.verdict], done.to_json(), as_json)


@click.command(name="tv-verify")
@_common
@click.option("--out", type=click.Path(path_type=Path), help="Keep the bundle in this folder.")
@ending("tv-verify")
def verify_main(
    plan_path: Path,
    jobs: int | None,
    as_json: bool,
    quiet: bool,
    witness_seconds: float,
    force: bool,
    out: Path | None,
) -> None:
    """Prove or refute the plan file PLAN: write a bundle, then run tv-check on it as a child process.

    The exit code is tv-check's: 0 valid, every output proved; 1 refuted or invalid; 2 usage; 3 unknown;
    4 solver missing; 5 malformed plan; 6 a file cannot be read or written; 130 interrupted; 143 terminated.
    """
    code, lines, document = 3, list[str](), dict[str, object]()
    try:
        with _guarded(), scratch("trainverify-") as folder:
            plan, progress = load(plan_path), _progress("tv-verify", quiet)
            done = emit(
                plan, out or folder / "bundle", jobs=jobs, witness_seconds=witness_seconds,
                progress=progress, force=force,
            )  # fmt: skip
            options = ["--jobs", str(jobs)] if jobs else []
            given = read_bytes(plan_path) if plan_path.is_file() else b""
            if given == dumps(plan):  # the digest of a plan file in another spelling differs
                (folder / "plan.json").write_bytes(given)
                options += ["--plan", str(folder / "plan.json")]
            with progress.phase("check"):
                checked = run_checker(done.bundle, *options)
            diagnosis = [f"diagnosis: {v.plan}: {v.reason}" for v in done.explained]
            code, lines = checked.exit_code, [*checked.lines[:-1], *diagnosis, *checked.lines[-1:]]
            document = {"emit": done.to_json(), "check": checked.document, "seconds": progress.seconds}
    except _Stop as stop:
        code, lines = stop.code, [stop.line]
    _finish(code, lines, document, as_json)


#: Nearly all that a run makes lives to its end: collecting as often as Python does by itself takes a sixth of
#: the time.
_COLLECT = (100_000, 20, 100)


@contextmanager
def _guarded() -> Iterator[None]:
    """Every failure ends the command with its own code; Python's code 1 would say that it is refuted."""
    gc.set_threshold(*_COLLECT)
    atexit.register(gc.freeze)  # or the last collection would look at all once more
    try:
        yield
    except FormatError as error:
        raise _Stop(5, f"MALFORMED: {one_line(error)}") from error
    except SolverMissing as error:
        raise _Stop(4, f"SOLVER MISSING: {one_line(error)}") from error
    except NoAnswer as error:
        raise _Stop(3, f"UNKNOWN: {one_line(error)}; no bundle is written") from error
    except Unaccepted as error:
        said = f"UNKNOWN: the checker does not accept this: {one_line(error)}; no bundle is written"
        raise _Stop(3, said) from error
    except (NotABundle, ForeignFile) as error:
        raise click.UsageError(str(error)) from error
    except (KeyboardInterrupt, Terminated) as stop:
        code, word = told(stop) or (INTERRUPTED, "")
        raise _Stop(code, f"{word.upper()}: no verdict; with --out, the next run continues") from None
    except (OSError, MemoryError) as error:
        code, why = told(error) or (FAILED, "")
        raise _Stop(code, f"FAILED: {why}") from error
    except Exception as error:
        if stopped := told(error):
            raise _Stop(stopped[0], f"FAILED: {stopped[1]}") from error
        traceback.print_exc()
        raise _Stop(3, f"UNKNOWN: internal error {type(error).__name__}: {one_line(error)}") from error


def _progress(name: str, quiet: bool) -> Progress:
    return Progress() if quiet else Progress(lambda line: click.echo(f"{name}: {line}", err=True))


def _finish(code: int, lines: list[str], document: dict[str, object], as_json: bool) -> None:
    """Print the lines, the verdict last, or one JSON object, and end the process."""
    if as_json:
        click.echo(json.dumps({**document, "exit_code": code, "verdict": lines[-1]}, sort_keys=True))
    else:
        click.echo("\n".join(lines))
    sys.exit(code)
