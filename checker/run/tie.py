"""What `tv-check --fingerprint` and `--checkpoint` read, and compare with the plan."""

from __future__ import annotations

from pathlib import Path

from ..errors import Malformed, need
from ..language.plan import Plan
from ..reading.bundle import read_file
from . import checkpoint, fingerprint

MAX_RECORDS = 1 << 20
METADATA = ".metadata"


def tied(plan: Plan, records: Path | None, stored: Path | None) -> list[str]:
    """Lines that say what was compared; `Foreign` where something is another run's."""
    lines: list[str] = []
    if records is not None:
        lines += fingerprint.compare(plan, read_records(records))
    if stored is not None:
        lines += checkpoint.compare(plan, read_file(stored / METADATA, f"{stored.name}/{METADATA}"))
    return lines


def read_records(folder: Path) -> dict[str, bytes]:
    """Every file `*.json` of a folder, by name."""
    try:
        names = sorted(p.name for p in folder.iterdir() if p.suffix == ".json")
    except OSError as error:
        raise Malformed(f"{folder.name}: cannot be read ({error.strerror})") from None
    need(len(names) <= MAX_RECORDS, f"{folder.name}: too many records")
    return {name: read_file(folder / name, name) for name in names}
