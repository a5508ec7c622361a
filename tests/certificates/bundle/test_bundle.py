"""Bundles on disk: complete, deterministic, replaced as a whole; nobody's other files are lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from certificates.bundle.bag import sealed
from certificates.bundle.bundle import (
    GENERATOR,
    Bundle,
    Manifest,
    NotABundle,
    OutputVerdict,
    read,
    summary,
    write,
)
from certificates.canonical import canonical_bytes, digest
from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from certificates.proof.stages import Proof
from certificates.proof.writing import proof_bytes

ROOT = Path(__file__).resolve().parents[3]


WORDS = {"report.txt": b"in words\n", "report.html": b"<p>in words\n"}


@pytest.fixture
def bundle(mlp: Plan) -> Bundle:
    verdicts = tuple(OutputVerdict(r.spec, r.plan, "PROVED") for r in mlp.outputs)
    texts = {"0001": "(check-sat)\n", "0002": "; second\n(check-sat)\n", "0010": "(exit)\n"}
    companions = {"tv-check.pyz": b"PK", "LICENSE": b"free\n"}
    proof = proof_bytes(Proof([], []))
    return Bundle(mlp, proof, texts, verdicts, "unsat", reports=WORDS, solvers=SOLVERS, companions=companions)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


SOLVERS = {"z3": "5.4.1", "cvc5": "1.4.2"}
SCHEMAS = ("about", "manifest", "plan", "proof", "witness")


def test_every_file_is_listed_with_its_digest(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    files = contents(tmp_path / "b")
    listed = dict(
        reversed(line.split("  "))
        for manifest in ("manifest-sha256.txt", "tagmanifest-sha256.txt")
        for line in files[manifest].decode().splitlines()
    )
    del files["tagmanifest-sha256.txt"]
    assert listed == {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}
    assert set(files) == {
        *("bagit.txt", "bag-info.txt", "manifest-sha256.txt"),
        *(f"data/{n}" for n in ("manifest.json", "plan.json", "proof.json", "run.sh", "slurm.sh")),
        *(f"data/{n}" for n in ("report.txt", "report.html", "README.md", "tv-check.pyz", "LICENSE")),
        *("data/obligations.tsv", *(f"data/obligations/{n}.smt2" for n in ("0001", "0002", "0010"))),
        *(f"data/schemas/{n}.schema.json" for n in SCHEMAS),
    }
    manifest = json.loads(files["data/manifest.json"])
    assert listed["data/plan.json"] == digest(dumps(bundle.plan))
    assert [v["plan"] for v in manifest["verdicts"]] == [r.plan for r in bundle.plan.outputs]
    assert manifest["solvers"] == SOLVERS


def test_the_bagit_library_accepts_the_bag(bundle: Bundle, tmp_path: Path) -> None:
    import bagit

    write(bundle, tmp_path / "b")
    bagit.Bag(str(tmp_path / "b")).validate()
    (tmp_path / "b/data/run.sh").write_bytes(b"")
    with pytest.raises(bagit.BagValidationError):
        bagit.Bag(str(tmp_path / "b")).validate()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum")
def test_sha256sum_alone_verifies_the_bag(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    words = ["sha256sum", "--strict", "-c", "tagmanifest-sha256.txt", "manifest-sha256.txt"]

    def verified() -> bool:
        done = subprocess.run(words, cwd=tmp_path / "b", capture_output=True, check=False)
        return done.returncode == 0

    assert verified()
    (tmp_path / "b/bag-info.txt").write_bytes(b"Contact-Name: somebody else\n")
    assert not verified()


def test_what_is_said_of_the_run_is_in_the_bag_and_nothing_else_is(bundle: Bundle, tmp_path: Path) -> None:
    """No date and no name that nobody gave."""
    write(bundle, tmp_path / "b")
    size = sum(p.stat().st_size for p in (tmp_path / "b/data").rglob("*") if p.is_file())
    lines = (tmp_path / "b/bag-info.txt").read_text().splitlines()
    assert lines == [
        f"Bag-Software-Agent: {GENERATOR}",
        "External-Description: PROVED: 5 of 5 outputs follow the specification under the stated relations",
        f"Payload-Oxum: {size}.19",
    ]
    write(replace(bundle, about={"who": "me", "commit": "abc"}), tmp_path / "c")
    said = (tmp_path / "c/bag-info.txt").read_text()
    assert "\nTrainVerify-Commit: abc\nTrainVerify-Who: me\n" in said
    assert json.loads((tmp_path / "c/data/about.json").read_text()) == {"who": "me", "commit": "abc"}


def test_the_readme_says_what_is_claimed_and_by_whom(bundle: Bundle) -> None:
    text = bundle.readme("ab12").decode()
    assert "    PROVED: 5 of 5 outputs follow the specification" in text and "mlp-tp2-dp2" in text
    assert "SHA-256 of data/plan.json: ab12\n" in text and "confirmed by cvc5 1.4.2, z3 5.4.1\n" in text
    assert hashlib.sha256(b"PK").hexdigest() in text and "@" not in text
    unsolved = replace(bundle, solvers={}, companions={})
    assert "(no solver was asked)\n" in unsolved.readme("ab12").decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_json_file_fits_its_schema(name: str, bundle: Bundle, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    shown = {
        "output": 0, "piece": 0, "symbols": {"dp": 0}, "junk": "3",
        "inputs": {"x": {"cuts": [[0, 7]], "values": ["1/2"]}},
    }  # fmt: skip
    write(replace(bundle, witness=shown, about={"who": "me"}), tmp_path / "b")
    schema = json.loads((tmp_path / "b/data/schemas" / f"{name}.schema.json").read_text())
    document = json.loads((tmp_path / "b/data" / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    check.validate(document)
    assert not check.is_valid(document | {"more": 1})


def test_a_report_is_written_of_the_sealed_bundle(bundle: Bundle, tmp_path: Path) -> None:
    """Whoever writes the reports sees a bundle that holds, and what is left there goes."""

    def reporter(folder: Path) -> Mapping[str, bytes]:
        assert read(folder).reports == {}
        (folder / "stray").write_text("")
        return {"report.txt": b"text", "report.html": b"page"}

    write(replace(bundle, reports={}), tmp_path / "b", reporter)
    assert read(tmp_path / "b").reports == {"report.txt": b"text", "report.html": b"page"}
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_reading_gives_what_was_written(bundle: Bundle, tmp_path: Path) -> None:
    bundle = replace(bundle, witness={"output": 0, "junk": "3"}, status="unknown", about={"who": "me"})
    for name in ("b", "b.tar"):
        write(bundle, tmp_path / name)
        found = read(tmp_path / name)
        assert found == replace(bundle, plan=found.plan)
        assert dumps(found.plan) == dumps(bundle.plan)


def test_an_archive_is_the_same_whatever_its_name(bundle: Bundle, tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write(bundle, tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "b.tar"], "no scratch file is left"
    write(replace(bundle, status="unknown"), tmp_path / "a.tar")
    assert read(tmp_path / "a.tar").status == "unknown", "an archive is replaced"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("b.tar", b"mine", "is no bundle"),
        ("b.tar", None, "no archive"),
        ("b.tar.gz", None, "written as .tar"),
    ],
)
def test_an_archive_overwrites_nothing_else(
    name: str, content: bytes | None, reason: str, bundle: Bundle, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(NotABundle, match=reason):
        write(bundle, path)
    assert path.is_dir() if content is None else path.read_bytes() == content


def first_version(bundle: Bundle, folder: Path) -> None:
    """The bundle as it was written before there were bags."""
    members = {"plan.json": dumps(bundle.plan), "proof.json": bundle.proof, "report.txt": b"in words\n"}
    members |= {f"obligations/{n}.smt2": t.encode() for n, t in bundle.obligations.items()}
    manifest = Manifest(bundle.status, bundle.verdicts, {}).to_json() | {
        "version": 1,
        "members": {n: digest(d) for n, d in members.items()},
    }
    del manifest["solvers"]
    (folder / "obligations").mkdir(parents=True)
    for name, data in (members | {"manifest.json": canonical_bytes(manifest)}).items():
        (folder / name).write_bytes(data)


def test_a_bundle_of_version_1_is_read_and_replaced(bundle: Bundle, tmp_path: Path) -> None:
    first_version(bundle, tmp_path / "b")
    found = read(tmp_path / "b")
    assert (found.obligations, found.verdicts, found.solvers) == (bundle.obligations, bundle.verdicts, {})
    (tmp_path / "b/obligations/0001.smt2").write_bytes(b"")
    with pytest.raises(FormatError, match=r"obligations/0001\.smt2 is missing or has not the SHA-256"):
        read(tmp_path / "b")
    write(bundle, tmp_path / "b")
    assert read(tmp_path / "b").solvers == SOLVERS and not (tmp_path / "b/obligations").exists()


def test_generator_names_the_released_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"{project['name']} {project['version']}" == GENERATOR


def test_a_bundle_is_replaced_as_a_whole(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    write(replace(bundle, obligations={"0001": "new\n"}), tmp_path / "b")
    assert sorted(p.name for p in (tmp_path / "b/data/obligations").iterdir()) == ["0001.smt2"]
    assert [p.name for p in tmp_path.iterdir()] == ["b"], "no scratch folder is left"


def test_leftovers_of_a_killed_run_are_no_obstacle(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / ".b.partial" / "obligations").mkdir(parents=True)
    (tmp_path / ".b.partial" / "stale").write_text("", encoding="ascii")
    write(bundle, tmp_path / "b")
    assert "stale" not in contents(tmp_path / "b")


def test_a_failure_while_writing_leaves_the_old_bundle(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bundle, tmp_path / "b")
    before = contents(tmp_path / "b")
    original = Path.write_bytes

    def full_disk(self: Path, data: bytes) -> int:
        if self.name == "manifest.json":
            raise OSError("no space left")
        return original(self, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space"):
        write(replace(bundle, obligations={}), tmp_path / "b")
    assert contents(tmp_path / "b") == before


def test_an_empty_folder_may_be_filled(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write(bundle, tmp_path / "b")
    assert read(tmp_path / "b").status == "unsat"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: (p.mkdir(), (p / "thesis.tex").write_text("x")), "is no bundle"),
        (lambda p: p.write_text("x"), "no folder"),
        (lambda p: p.symlink_to(p.parent), "no folder"),
        (lambda p: (p.mkdir(), (p / "manifest.json").write_text("{}")), "is no bundle"),
    ],
)
def test_other_things_are_not_overwritten(bundle: Bundle, tmp_path: Path, make: object, reason: str) -> None:
    assert callable(make)
    make(tmp_path / "b")
    with pytest.raises(NotABundle, match=reason):
        write(bundle, tmp_path / "b")
    assert not (tmp_path / ".b.partial").exists()


def test_notes_in_a_bundle_are_not_deleted(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    (tmp_path / "b/data/obligations/notes.txt").write_text("mine", encoding="ascii")
    with pytest.raises(NotABundle, match=r"notes\.txt"):
        write(bundle, tmp_path / "b")
    assert (tmp_path / "b/data/obligations/notes.txt").read_text(encoding="ascii") == "mine"


def test_a_changed_member_is_noticed(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "b")
    (tmp_path / "b/data/obligations/0002.smt2").write_text("(exit)\n", encoding="ascii")
    with pytest.raises(FormatError, match=r"0002\.smt2 is missing or has not the SHA-256"):
        read(tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "sat"}, "status"),
        ({"solvers": {"z3": 5}}, "solvers must map names"),
        ({"solvers": []}, "solvers must map names"),
        ({"generator": 1}, "the generator be a text"),
        ({"members": {}}, "no|not a trainverify-bundle manifest of version 2"),
        ({"version": 3}, "version 1 or 2"),
        ({"verdicts": [{"spec": "a", "plan": "a", "verdict": "FINE", "reason": ""}]}, "a verdict is"),
    ],
)
def test_a_bad_manifest_is_refused(
    bundle: Bundle, tmp_path: Path, change: Mapping[str, object], reason: str
) -> None:
    payload = bundle.members()
    payload["manifest.json"] = json.dumps(json.loads(payload["manifest.json"]) | change).encode()
    for name, data in sealed(payload, ()).items():
        (tmp_path / "b" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "b" / name).write_bytes(data)
    with pytest.raises(FormatError, match=reason):
        read(tmp_path / "b")


def test_nothing_claimed_is_no_success() -> None:
    assert summary([]).startswith("UNKNOWN")
    refuted = [OutputVerdict("a", "a", "REFUTED"), OutputVerdict("b", "b", "PROVED")]
    assert summary(refuted) == "REFUTED: 1 of 2 outputs differ on a concrete input; 1 proved"
