"""`tv-report`: writes `report.txt` and `report.html` of a bundle; `tv-check` compares them with its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

import click

from . import kernel
from .endings import ending, prepare, version
from .errors import CheckerError, Rejected
from .language.proof import Proof
from .reading.bundle import read_bundle
from .reading.plan import read_plan
from .reading.proof import read_manifest, read_proof
from .refuting.witness import Replay
from .refuting.witnesses import witnesses
from .report.findings import Findings, find
from .report.render import render, unreadable

NAMES = ("report.txt", "report.html")


def read(data: Mapping[str, bytes]) -> Findings:
    """What a bundle claims, as far as its records show; a `CheckerError` where it does not hold."""
    plan, proof = read_plan(data["plan.json"]), read_proof(data["proof.json"], data["plan.json"])
    found = kernel.examine(read_manifest(data), plan, proof, data)
    return find(found, proof, data, witnesses(plan, data, found.claimed))


def compare(
    examined: kernel.Examined, proof: Proof, data: Mapping[str, bytes], replayed: Mapping[int, Replay]
) -> bool:
    """Are both reports what the bundle gives? False in a bundle of version 1, whose text the emitter wrote;
    `Rejected` where one is missing or forged."""
    if examined.manifest.version == 1:
        return False
    for name in NAMES:
        if name not in data:
            raise Rejected(1, f"{name} is missing")
    for name, text in render(find(examined, proof, data, replayed)).items():
        if text.encode() != data[name]:
            ours, theirs = (t.splitlines() for t in (text, data[name].decode("utf-8", "replace")))
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            raise Rejected(1, f"{name} is not what the checker writes of this bundle, from line {at + 1} on")
    return True


def reports(bundle: Path) -> tuple[int, dict[str, str]]:
    """Exit code and reports of a bundle; of one that does not hold, they say so."""
    prepare()
    try:
        return 0, render(read(read_bundle(bundle)))
    except (CheckerError, RecursionError) as error:
        code = error.code if isinstance(error, CheckerError) else 5
        return code, unreadable(escape(str(error) or "nested too deeply"))


@click.command(name="tv-report")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True,
              help="The folder to write to.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace report.txt and report.html that are there.")
@version
@ending("tv-report")
def main(bundle: Path, out: Path, force: bool) -> None:
    """Write report.txt and report.html of the certificate BUNDLE: what it claims, in words and pictures.

    No solver runs and nothing is decided: tv-check decides, and compares both files with these.

    Exit codes: 0 written; 1 the bundle is invalid; 2 usage; 3 unknown; 5 malformed input. Where the bundle
    does not hold, the reports say so. 6 a file cannot be written; 130 interrupted; 143 terminated.
    """
    there = [out / name for name in NAMES if (out / name).exists() or (out / name).is_symlink()]
    if there and not force:
        raise click.UsageError(f"{there[0]} exists; another --out, or --force to replace it")
    code, texts = reports(bundle)
    for name, text in texts.items():
        (out / name).write_bytes(text.encode())
    sys.exit(code)
