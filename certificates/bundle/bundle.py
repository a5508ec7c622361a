"""The certificate bundle: a folder whose members ``docs/certificate.md`` describes.

:func:`write` replaces a bundle as a whole: members go into a sibling folder first, which is then renamed.
:func:`read` returns a bundle whose members all have the digests that its manifest lists.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..canonical import canonical_bytes, digest, parse_json, read_bytes
from ..errors import FormatError
from ..plan.plan import Plan
from ..plan.reading import loads
from ..plan.writing import dumps
from ..proof.reading import proof_from_json, verdicts_from_json
from ..words import VERSION as RELEASE

FORMAT, VERSION = "trainverify-bundle", 1
GENERATOR = f"trainverify {RELEASE}"
MANIFEST = "manifest.json"

Status = Literal["unsat", "unknown"]
Word = Literal["PROVED", "REFUTED", "UNKNOWN"]

#: Runs one solver over all obligations with nothing but a shell; output that is no answer is ``error``.
RUN_SH = """\
#!/bin/sh
# Usage: sh run.sh [SOLVER [OPTION...]]     (default: z3; for example: sh run.sh cvc5 --lang smt2)
# Prints one line 'NNNN answer' per obligation: the input of tv-check --answers. Exit code 0 if all are unsat.
[ $# -gt 0 ] || set -- z3
case $0 in
  */*) here=${0%/*} ;;
  *) here=. ;;
esac
code=0
for file in "$here"/obligations/*.smt2; do
  [ -f "$file" ] || continue
  number=${file##*/}
  answer=$("$@" "$file" </dev/null 2>/dev/null) || answer=error
  case $answer in
    unsat | sat | unknown) ;;
    *) answer=error ;;
  esac
  [ "$answer" = unsat ] || code=1
  echo "${number%.smt2} $answer"
done
exit $code
"""


class NotABundle(Exception):
    """The folder to write to holds something else, which is not overwritten."""


@dataclass(frozen=True)
class OutputVerdict:
    """What a bundle claims about one output relation of the plan."""

    spec: str
    plan: str
    verdict: Word
    reason: str = ""

    def to_json(self) -> dict[str, str]:
        return {"spec": self.spec, "plan": self.plan, "verdict": self.verdict, "reason": self.reason}


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``: SHA-256 by member, and a verdict per output relation, in the plan's order."""

    status: Status
    members: Mapping[str, str]
    verdicts: tuple[OutputVerdict, ...]
    generator: str = GENERATOR

    def to_json(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "generator": self.generator,
            "status": self.status,
            "members": dict(self.members),
            "verdicts": [v.to_json() for v in self.verdicts],
        }


@dataclass(frozen=True)
class Bundle:
    """A certificate. ``proof`` is ``proof.json``, ``obligations`` maps file numbers (``0001``) to texts;
    ``report`` is for people.
    """

    plan: Plan
    proof: bytes
    obligations: Mapping[str, str]
    verdicts: tuple[OutputVerdict, ...]
    status: Status
    report: str
    witness: Mapping[str, object] | None = None

    def members(self) -> dict[str, bytes]:
        """Every file but the manifest."""
        out = {"plan.json": dumps(self.plan), "proof.json": self.proof}
        out |= {_obligation(number): text.encode("ascii") for number, text in self.obligations.items()}
        if self.witness is not None:
            out["witness.json"] = canonical_bytes(self.witness)
        return out | {"run.sh": RUN_SH.encode("ascii"), "report.txt": self.report.encode("ascii")}


def _obligation(number: str) -> str:
    return f"obligations/{number}.smt2"


# --- writing -----------------------------------------------------------------------------------------------


def write(bundle: Bundle, folder: Path) -> None:
    """Write or replace a bundle. A kill leaves the old one, the new one or none, never a mixture."""
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        scratch = Path(beside, "new")
        members = bundle.members()
        (scratch / "obligations").mkdir(parents=True)
        for name, data in members.items():
            (scratch / name).write_bytes(data)
        manifest = Manifest(bundle.status, {n: digest(d) for n, d in members.items()}, bundle.verdicts)
        (scratch / MANIFEST).write_bytes(canonical_bytes(manifest.to_json()))
        _exchange(scratch, folder, Path(beside, "old"))


def _exchange(new: Path, folder: Path, old: Path) -> None:
    """Put ``new`` in the place of ``folder``, which goes to ``old``, or leave all as it was."""
    if not folder.exists():
        new.rename(folder)
        return
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise


def check_replaceable(folder: Path) -> None:
    """Raise :class:`NotABundle` unless ``folder`` is absent, empty, or a bundle and nothing else."""
    if not folder.is_symlink() and not folder.exists():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise NotABundle(f"{folder} exists and is no folder")
    present = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}
    if not present:
        return
    try:
        strange = present - {MANIFEST} - set(read_manifest(folder).members)
    except FormatError:
        raise NotABundle(f"{folder} exists and is no bundle; it is not overwritten") from None
    if strange:
        raise NotABundle(f"{folder} also holds {min(strange)}, which is no member of its bundle")


def certified(folder: Path) -> str | None:
    """The SHA-256 of the plan that the bundle in ``folder`` is about; ``None`` if there is no bundle."""
    return read_manifest(folder).members.get("plan.json", "") if (folder / MANIFEST).exists() else None


# --- reading -----------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, or a ``FormatError``."""
    raw = parse_json(read_bytes(folder / MANIFEST))
    keys = {"format", "version", "generator", "status", "members", "verdicts"}
    if not isinstance(raw, dict) or set(raw) != keys or raw["version"] != VERSION:
        raise FormatError(f"{MANIFEST} is not a {FORMAT} manifest of version {RELEASE}")
    members, generator = raw["members"], raw["generator"]
    listed = isinstance(members, dict) and all(isinstance(v, str) for v in members.values())
    if not listed or not isinstance(generator, str):
        raise FormatError(f"{MANIFEST}: members must map names to digests, the generator be a text")
    return Manifest(_status(raw["status"]), members, _verdicts(raw), generator)


def _status(value: object) -> Status:
    match value:
        case "unsat" | "unknown":
            return value
        case _:
            raise FormatError(f"{MANIFEST}: the status is unsat or unknown")


def _verdicts(raw: object) -> tuple[OutputVerdict, ...]:
    out = []
    for spec, plan, word, reason in verdicts_from_json(raw):
        match word:
            case "PROVED" | "REFUTED" | "UNKNOWN":
                out.append(OutputVerdict(spec, plan, word, reason))
            case _:
                raise FormatError(f"{MANIFEST}: a verdict is PROVED, REFUTED or UNKNOWN")
    return tuple(out)


def read(folder: Path) -> Bundle:
    """The bundle in ``folder``. Its claims are not checked; that is ``tv-check``'s task."""
    manifest = read_manifest(folder)
    data: dict[str, bytes] = {}
    for name, wanted in manifest.members.items():
        if name.startswith("/") or ".." in name.split("/"):
            raise FormatError(f"{MANIFEST} lists a member outside the folder")
        data[name] = read_bytes(folder / name)
        if digest(data[name]) != wanted:
            raise FormatError(f"{name} has not the SHA-256 that the manifest lists")
    missing = [n for n in ("plan.json", "proof.json", "report.txt") if n not in data]
    if missing:
        raise FormatError(f"the manifest does not list {missing[0]}")
    witness = parse_json(data["witness.json"]) if "witness.json" in data else None
    if witness is not None and not isinstance(witness, dict):
        raise FormatError("witness.json must be an object")
    try:
        texts = {n: d.decode("ascii") for n, d in data.items() if n.endswith((".smt2", ".txt"))}
    except UnicodeDecodeError as error:
        raise FormatError(f"an obligation or the report is not ASCII: {error}") from None
    proof_from_json(parse_json(data["proof.json"]))
    return Bundle(
        loads(data["plan.json"]),
        data["proof.json"],
        {n[len("obligations/") : -len(".smt2")]: t for n, t in texts.items() if n.endswith(".smt2")},
        manifest.verdicts,
        manifest.status,
        texts["report.txt"],
        witness,
    )
