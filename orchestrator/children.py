"""Child processes of this interpreter, running this installation whatever the current folder contains."""

from __future__ import annotations

import html
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from certificates.bundle.bundle import REPORTS, OutputVerdict
from certificates.errors import FormatError

#: Seconds that a child has to clean up behind itself.
_PATIENCE = 10.0
_ROOT = str(Path(__file__).parents[1])
_CODE = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "from {module} import {function}; {function}()"
)


def command(module: str, function: str, *arguments: str) -> list[str]:
    """The command line that calls a function without arguments of a module beside this package."""
    code = _CODE.format(module=module, function=function)
    return [sys.executable, "-P", "-c", code, _ROOT, *arguments]


@dataclass(frozen=True)
class Checked:
    """What ``tv-check`` said. Only its exit code decides; the rest is for people.

    ``outputs`` is empty if the bundle is invalid, malformed, or lacks solvers.
    """

    exit_code: int
    lines: tuple[str, ...]
    outputs: tuple[OutputVerdict, ...]
    document: dict[str, object]


def run_checker(bundle: Path, *options: str) -> Checked:
    """``tv-check`` on a bundle, as a child process: nothing that it trusts comes from this one."""
    return _checked(*_run(command("checker.cli", "main", str(bundle), "--json", "--quiet", *options)))


def _run(words: list[str]) -> tuple[int, bytes, bytes]:
    """Exit code and output of a child."""
    with _child(words) as child:
        out, err = child.communicate()
    return child.returncode, out, err


@contextmanager
def _child(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A child. Ctrl-C is for this process, which ends its child: it has solvers and folders of its own to
    clean up.
    """
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            if child.poll() is None:
                child.terminate()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_PATIENCE)
                child.kill()


#: How a report begins that says of a bundle that it does not hold.
_UNACCEPTED = "NO CERTIFICATE: the checker does not accept this bundle:"


@contextmanager
def reporting(bundle: Path) -> Iterator[Callable[[], dict[str, bytes]]]:
    """The checker, at work on the reports of a bundle without any; it is ended where nobody waits for it.

    Of a bundle that does not hold, the reports say so; a checker that wrote none is an ``OSError``.
    """
    with tempfile.TemporaryDirectory(prefix="tv-reports-") as out:
        words = command("checker.reporting", "main", str(bundle), "--out", out)
        with _child(words) as child:

            def end() -> dict[str, bytes]:
                _, err = child.communicate()
                missing = [name for name in REPORTS if not Path(out, name).is_file()]
                if missing:
                    last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
                    why = last[0] if last else f"exit code {child.returncode}"
                    raise OSError(f"the checker wrote no {missing[0]}: {why}")
                return {name: Path(out, name).read_bytes() for name in REPORTS}

            yield end


def write_reports(bundle: Path) -> dict[str, bytes]:
    """The reports of a bundle without any, written by the checker, as a child process."""
    with reporting(bundle) as end:
        return end()


def unaccepted(report: bytes) -> str:
    """Why the checker does not accept a bundle, by its ``report.txt``; empty if it does not say so."""
    before, said, why = report.decode("utf-8", "replace").partition(_UNACCEPTED)
    return html.unescape(why.strip()) if said and not before else ""


def schedule_said(report: bytes) -> str:
    """What the checker's ``report.txt`` says of the schedule; if nothing, then it is not safe."""
    lines = report.decode("ascii", "replace").splitlines()
    if "Schedule" in lines[:-1]:
        return lines[lines.index("Schedule") + 1].strip()
    return f"UNSAFE: the checker says nothing of the schedule, but {lines[0] if lines else 'nothing'}"


def timestamped(data: Path, reply: Path, authority: Path) -> str:
    """The time of an RFC 3161 reply for a file, given by an authority that is trusted; or a ``FormatError``.

    ``openssl ts`` verifies. An ``OSError`` where it is not installed.
    """
    words = ["openssl", "ts", "-verify", "-data", str(data), "-in", str(reply), "-CAfile", str(authority)]
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise FormatError(f"{reply} is no timestamp of {data} by an authority of {authority}")
    told = subprocess.run(
        ["openssl", "ts", "-reply", "-in", str(reply), "-text"],
        capture_output=True, stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    for line in told.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("Time stamp: "):
            return f"existed at {line.removeprefix('Time stamp: ')}, as the authority says"
    raise FormatError(f"{reply} names no time")


def _checked(code: int, out: bytes, err: bytes) -> Checked:
    """An answer without a readable document is no verdict, whatever the exit code."""
    try:
        document = json.loads(out)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("exit_code") == code:
        said, outputs = document.get("lines"), document.get("outputs", [])
        if isinstance(said, list) and said:
            return Checked(code, tuple(map(str, said)), tuple(OutputVerdict(**o) for o in outputs), document)
    lines = err.decode("utf-8", "replace").strip().splitlines()[-1:]
    how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
    last = f"UNKNOWN: tv-check {how}: {lines[0] if lines else 'no message'}"
    return Checked(code if code > 1 else 3, (last,), (), {})
