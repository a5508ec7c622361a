"""The certificate bundle: a folder whose members ``docs/certificate.md`` describes.

:func:`write` replaces a bundle as a whole: members go into a sibling folder first, which is then renamed.
:func:`read` returns a bundle whose members all have the digests that its manifest lists.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..canonical import canonical_bytes, digest, parse_json, read_bytes
from ..errors import FormatError
from ..plan.plan import Plan
from ..plan.reading import loads
from ..plan.writing import dumps
from ..proof.reading import proof_from_json, verdicts_from_json
from .about import read_about

FORMAT, VERSION = "trainverify-bundle", 2
GENERATOR = "trainverify 0.1.0"
MANIFEST = "manifest.json"
REPORTS = ("report.txt", "report.html")
#: Given a folder with all other members of a bundle, gives its reports by name.
Reporter = Callable[[Path], Mapping[str, bytes]]

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


def summary(verdicts: Sequence[OutputVerdict]) -> str:
    """The verdict in one line. Nothing claimed is no success."""
    words = [v.verdict for v in verdicts]
    total = len(words)
    if "REFUTED" in words:
        differ = f"{words.count('REFUTED')} of {total} outputs differ on a concrete input"
        return f"REFUTED: {differ}; {words.count('PROVED')} proved"
    if "UNKNOWN" in words or not words:
        without = f"{words.count('UNKNOWN')} of {total} outputs without a verdict"
        return f"UNKNOWN: {without}; {words.count('PROVED')} proved"
    return f"PROVED: {total} of {total} outputs follow the specification under the stated relations"


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
    ``about`` is what the maker says of the run. ``reports`` are for people; the checker writes them.
    """

    plan: Plan
    proof: bytes
    obligations: Mapping[str, str]
    verdicts: tuple[OutputVerdict, ...]
    status: Status
    witness: Mapping[str, object] | None = None
    about: Mapping[str, str] | None = None
    reports: Mapping[str, bytes] = field(default_factory=dict)

    def members(self) -> dict[str, bytes]:
        """Every file but the manifest."""
        out = {"plan.json": dumps(self.plan), "proof.json": self.proof}
        out |= {_obligation(number): text.encode("ascii") for number, text in self.obligations.items()}
        if self.witness is not None:
            out["witness.json"] = canonical_bytes(self.witness)
        if self.about is not None:
            out["about.json"] = canonical_bytes(dict(self.about))
        return out | {"run.sh": RUN_SH.encode("ascii")} | dict(self.reports)


def _obligation(number: str) -> str:
    return f"obligations/{number}.smt2"


# --- writing -----------------------------------------------------------------------------------------------


def write(bundle: Bundle, folder: Path, report: Reporter | None = None) -> None:
    """Write or replace a bundle. A kill leaves the old one, the new one or none, never a mixture.

    ``report`` is given the folder with all other members, and the manifest of these.
    """
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "old"))
    for leftover in (scratch, old):
        if leftover.exists():
            shutil.rmtree(leftover)
    (scratch / "obligations").mkdir(parents=True)
    _put(bundle, scratch)
    if report is not None:
        _put(replace(bundle, reports=report(scratch)), scratch)
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    if old.exists():
        shutil.rmtree(old)


def _put(bundle: Bundle, folder: Path) -> None:
    members = bundle.members()
    for name, data in members.items():
        (folder / name).write_bytes(data)
    manifest = Manifest(bundle.status, {n: digest(d) for n, d in members.items()}, bundle.verdicts)
    (folder / MANIFEST).write_bytes(canonical_bytes(manifest.to_json()))


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


# --- reading -----------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, or a ``FormatError``."""
    raw = parse_json(read_bytes(folder / MANIFEST))
    keys = {"format", "version", "generator", "status", "members", "verdicts"}
    if not isinstance(raw, dict) or set(raw) != keys or raw["version"] not in (1, VERSION):
        raise FormatError(f"{MANIFEST} is not a {FORMAT} manifest of version 1 or {VERSION}")
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
    missing = [n for n in ("plan.json", "proof.json") if n not in data]
    if missing:
        raise FormatError(f"the manifest does not list {missing[0]}")
    witness = parse_json(data["witness.json"]) if "witness.json" in data else None
    if witness is not None and not isinstance(witness, dict):
        raise FormatError("witness.json must be an object")
    try:
        texts = {n: d.decode("ascii") for n, d in data.items() if n.endswith(".smt2")}
    except UnicodeDecodeError as error:
        raise FormatError(f"an obligation is not ASCII: {error}") from None
    proof_from_json(parse_json(data["proof.json"]))
    return Bundle(
        loads(data["plan.json"]),
        data["proof.json"],
        {n[len("obligations/") : -len(".smt2")]: t for n, t in texts.items()},
        manifest.verdicts,
        manifest.status,
        witness,
        read_about(data["about.json"]) if "about.json" in data else None,
        {n: d for n, d in data.items() if n in REPORTS},
    )
