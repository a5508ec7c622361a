"""Where ``tv-capture`` may write: a new file, or over a plan file that the project wrote."""

from __future__ import annotations

from pathlib import Path

from certificates.plan.writing import is_plan_file


def objection(out: Path, source: Path, force: bool) -> str | None:
    """Why ``out`` may not be written, or nothing; ``source`` is the user's file, which no option gives up."""
    folder = out.resolve().parent
    if not folder.is_dir():
        return f"{folder} is no folder; make it first"
    if not out.exists():
        return None
    if not out.is_file():
        return f"{out} is not a regular file"
    if out.samefile(source):
        return f"{out} is the file that is captured"
    if not force and not is_plan_file(out):
        return f"{out} exists and is not a plan file: another --out, or --force to overwrite it"
    return None
