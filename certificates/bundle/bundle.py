"""The certificate bundle: a bag whose payload ``docs/certificate.md`` describes, a folder or one archive.

:func:`write` replaces a bundle as a whole: files go into a sibling first, which is then renamed.
:func:`read` returns a bundle whose files all have the digests that its manifests list, also one of version 1,
which was no bag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..canonical import canonical_bytes, digest, parse_json
from ..endings import scratch
from ..errors import FormatError
from ..plan.plan import Plan
from ..plan.reading import loads
from ..plan.schema import PUBLISHED
from ..plan.writing import dumps
from ..proof.reading import proof_from_json, verdicts_from_json
from ..words import VERSION as RELEASE
from ..words import clean
from .about import read_about
from .archive import is_archive, read_files, tar_bytes
from .bag import PAYLOAD, TAGS, listed, opened, sealed
from .listing import obligations_tsv

FORMAT, VERSION = "trainverify-bundle", 2
GENERATOR = f"trainverify {RELEASE}"
MANIFEST = "manifest.json"
CHECKER = "tv-check.pyz"
COMPANIONS = (CHECKER, "LICENSE")
REPORTS = ("report.txt", "report.html")
#: Given a sealed bundle without reports, in a folder, gives them by name.
Reporter = Callable[[Path], Mapping[str, bytes]]
#: Files that every bundle has, as they lie beside this module.
SHIPPED = Path(__file__).with_name("shipped")
SCRIPTS = ("run.sh", "slurm.sh")
SCHEMAS = {f"schemas/{p.name}": p for p in (PUBLISHED, *sorted(SHIPPED.glob("*.schema.json")))}

Status = Literal["unsat", "unknown"]
Word = Literal["PROVED", "REFUTED", "UNKNOWN"]


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
    """``manifest.json``: a verdict per output relation, in the plan's order, and versions.

    ``solvers`` are those that confirmed the obligations, with their versions; empty if none was asked.
    """

    status: Status
    verdicts: tuple[OutputVerdict, ...]
    solvers: Mapping[str, str] = field(default_factory=dict)
    generator: str = GENERATOR

    def to_json(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "generator": self.generator,
            "solvers": dict(self.solvers),
            "status": self.status,
            "verdicts": [v.to_json() for v in self.verdicts],
        }


@dataclass(frozen=True)
class Bundle:
    """A certificate. ``proof`` is ``proof.json``, ``obligations`` maps file numbers (``0001``) to texts.

    ``about`` is what is said of the run; ``reports`` are for people. ``solvers`` maps names to versions,
    ``companions`` are further files by name: a checker and its licence.
    """

    plan: Plan
    proof: bytes
    obligations: Mapping[str, str]
    verdicts: tuple[OutputVerdict, ...]
    status: Status
    witness: Mapping[str, object] | None = None
    about: Mapping[str, str] | None = None
    reports: Mapping[str, bytes] = field(default_factory=dict)
    solvers: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, bytes] = field(default_factory=dict)

    def members(self) -> dict[str, bytes]:
        """The payload: every file but the bag's own."""
        manifest = Manifest(self.status, self.verdicts, self.solvers)
        out = {MANIFEST: canonical_bytes(manifest.to_json()), "plan.json": dumps(self.plan)}
        out |= {"proof.json": self.proof, "README.md": self.readme(digest(out["plan.json"]))}
        out |= {_obligation(number): text.encode("ascii") for number, text in self.obligations.items()}
        out["obligations.tsv"] = obligations_tsv(parse_json(self.proof), self.obligations)
        for name, value in (("witness.json", self.witness), ("about.json", self.about)):
            if value is not None:
                out[name] = canonical_bytes(dict(value))
        out |= {name: (SHIPPED / name).read_bytes() for name in SCRIPTS}
        out |= {name: path.read_bytes() for name, path in SCHEMAS.items()}
        return out | dict(self.companions) | dict(self.reports)

    def readme(self, plan: str) -> bytes:
        """``README.md``, for a reader who has nothing else; ``plan`` is the plan's digest."""
        solvers = ", ".join(f"{name} {version}" for name, version in sorted(self.solvers.items()))
        words = {
            "CLAIM": summary(self.verdicts)
            if self.solvers
            else f"{summary(self.verdicts)} (no solver was asked)",
            "PLAN": clean(self.plan.name),
            "DIGEST": plan,
            "GENERATOR": GENERATOR,
            "SOLVERS": f"; obligations confirmed by {solvers}" if solvers else "",
            "CHECKER": digest(self.companions[CHECKER]) if CHECKER in self.companions else "none",
        }
        text = (SHIPPED / "README.md").read_text("utf-8")
        return re.sub("@([A-Z]+)@", lambda found: words[found[1]], text).encode("ascii")

    def info(self) -> list[tuple[str, str]]:
        """What the bag says of itself, in order: ``bag-info.txt``."""
        said = [
            (f"TrainVerify-{name.capitalize()}", text) for name, text in sorted((self.about or {}).items())
        ]
        return [("Bag-Software-Agent", GENERATOR), ("External-Description", summary(self.verdicts)), *said]

    def files(self) -> dict[str, bytes]:
        """The whole bag: its files by their names in it."""
        return sealed(self.members(), self.info())


def _obligation(number: str) -> str:
    return f"obligations/{number}.smt2"


# --- writing -----------------------------------------------------------------------------------------------


def write(bundle: Bundle, out: Path, report: Reporter | None = None) -> None:
    """Write or replace a bundle: a folder, or an archive if ``out`` ends in ``.tar``.

    A kill leaves the old one, the new one or none, never a mixture. ``report`` writes the reports: it is
    given a folder with the sealed bundle without them.
    """
    check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch(f".{out.name}.", out.parent) as beside:
        folder = beside / "new"
        members, info = bundle.members(), bundle.info()
        files = sealed(members, info)
        if report is None:
            put(files, folder)
        else:
            without = beside / "without"
            put(files, without)
            before, files = files, sealed(members | dict(report(without)), info)
            put(files, folder, {name: without / name for name in files if files[name] == before.get(name)})
        if is_archive(out):
            archive = beside / out.name
            archive.write_bytes(tar_bytes(f"trainverify-{digest(members['plan.json'])[:16]}", files))
            archive.replace(out)
        else:
            _exchange(folder, out, beside / "old")


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


def put(files: Mapping[str, bytes], folder: Path, there: Mapping[str, Path] | None = None) -> None:
    """Write files into a folder; those that are ``there`` elsewhere already are moved."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if there and name in there:
            there[name].rename(folder / name)
        else:
            (folder / name).write_bytes(data)


def check_replaceable(out: Path) -> None:
    """Raise :class:`NotABundle` unless ``out`` is absent, an empty folder, or a bundle and nothing else."""
    if out.name.endswith(".gz"):
        raise NotABundle(
            f"{out}: an archive is written as .tar; what a compressor writes differs by its version"
        )
    if not out.is_symlink() and not out.exists():
        return
    if out.is_symlink() or out.is_dir() == is_archive(out):
        raise NotABundle(f"{out} exists and is no {'archive' if is_archive(out) else 'folder'}")
    try:
        files = read_files(out)
        strange = set(files) - names(files)
    except FormatError:
        raise NotABundle(f"{out} exists and is no bundle; it is not overwritten") from None
    if strange:
        raise NotABundle(f"{out} also holds {min(strange)}, which is no member of its bundle")


def names(files: Mapping[str, bytes]) -> set[str]:
    """The files that a bundle says it has, of an empty folder none; a ``FormatError`` if it is no bundle."""
    if TAGS in files:
        return {TAGS, *listed(files, TAGS), *listed(files, PAYLOAD)}
    return {MANIFEST, *_first_members(files)} if files else set()


def certified(path: Path) -> str | None:
    """The SHA-256 of the plan that the bundle in ``path`` is about; ``None`` if there is no bundle."""
    files = read_files(path) if path.exists() else {}
    if TAGS in files:
        return listed(files, PAYLOAD).get("data/plan.json", "")
    return _first_members(files).get("plan.json", "") if files else None


# --- reading -----------------------------------------------------------------------------------------------


def payload(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The members of a bundle, given all its files; a ``FormatError`` if one is not what is listed."""
    if TAGS in files:
        return opened(files)
    for name, wanted in _first_members(files).items():
        if name not in files or digest(files[name]) != wanted:
            raise FormatError(f"{name} is missing or has not the SHA-256 that the manifest lists")
    return dict(files)


def _first_members(files: Mapping[str, bytes]) -> dict[str, str]:
    """Members and digests of a bundle of version 1, whose manifest lists them."""
    raw = parse_json(files[MANIFEST]) if MANIFEST in files else None
    members = raw.get("members") if isinstance(raw, dict) and raw.get("format") == FORMAT else None
    if not isinstance(members, dict) or not all(isinstance(v, str) for v in members.values()):
        raise FormatError(f"no bundle: neither {TAGS} nor a {MANIFEST} that lists its members")
    return members


def read_manifest(data: bytes) -> Manifest:
    """The manifest of a bundle, or a ``FormatError``."""
    raw = parse_json(data)
    if not isinstance(raw, dict) or raw.get("version") not in (1, VERSION):
        raise FormatError(f"{MANIFEST} is not a {FORMAT} manifest of version 1 or {VERSION}")
    own = "members" if raw["version"] == 1 else "solvers"
    if set(raw) != {"format", "version", "generator", "status", "verdicts", own}:
        raise FormatError(f"{MANIFEST} is not a {FORMAT} manifest of version {raw['version']}")
    solvers, generator = raw.get("solvers", {}), raw["generator"]
    told = isinstance(solvers, dict) and all(isinstance(v, str) for v in solvers.values())
    if not told or not isinstance(generator, str):
        raise FormatError(f"{MANIFEST}: solvers must map names to versions, the generator be a text")
    return Manifest(_status(raw["status"]), _verdicts(raw), solvers, generator)


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


def read(path: Path) -> Bundle:
    """The bundle in a folder or an archive. Its claims are not checked; that is ``tv-check``'s task."""
    data = payload(read_files(path))
    missing = [n for n in (MANIFEST, "plan.json", "proof.json") if n not in data]
    if missing:
        raise FormatError(f"the bundle has no {missing[0]}")
    manifest = read_manifest(data[MANIFEST])
    try:
        texts = {n[12:-5]: d.decode("ascii") for n, d in data.items() if n.startswith("obligations/")}
    except UnicodeDecodeError as error:
        raise FormatError(f"an obligation is not ASCII: {error}") from None
    proof_from_json(parse_json(data["proof.json"]))
    return Bundle(
        loads(data["plan.json"]),
        data["proof.json"],
        texts,
        manifest.verdicts,
        manifest.status,
        _object(data, "witness.json"),
        read_about(data["about.json"]) if "about.json" in data else None,
        {n: d for n, d in data.items() if n in REPORTS},
        manifest.solvers,
        {n: d for n, d in data.items() if n in COMPANIONS},
    )


def _object(data: Mapping[str, bytes], name: str) -> dict[str, object] | None:
    value = parse_json(data[name]) if name in data else None
    if value is not None and not isinstance(value, dict):
        raise FormatError(f"{name} must be an object")
    return value
