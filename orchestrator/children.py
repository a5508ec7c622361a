"""Child processes of this interpreter, running this installation whatever the current folder contains."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from certificates.bundle.bundle import REPORTS, OutputVerdict
from certificates.errors import FormatError

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
    words = command("checker.cli", "main", str(bundle), "--json", *options)
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return _checked(done.returncode, done.stdout, done.stderr)


def write_reports(bundle: Path) -> dict[str, bytes]:
    """The reports of a bundle without any, written by the checker, as a child process.

    Of a bundle that does not hold, the reports say so; a checker that wrote none is an ``OSError``.
    """
    words = command("checker.reporting", "main", str(bundle), "--out", str(bundle))
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    missing = [name for name in REPORTS if not (bundle / name).is_file()]
    if missing:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise OSError(
            f"the checker wrote no {missing[0]}: {last[0] if last else f'exit code {done.returncode}'}"
        )
    return {name: (bundle / name).read_bytes() for name in REPORTS}


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
    last = f"UNKNOWN: tv-check ended with code {code}: {lines[0] if lines else 'no message'}"
    return Checked(code if code not in (0, 1) else 3, (last,), (), {})
