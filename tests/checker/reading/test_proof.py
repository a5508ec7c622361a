"""What the reader of proofs and manifests refuses, and what it lets pass."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.language.proof import AlgebraStage
from checker.reading.proof import read_manifest, read_proof, read_ref

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import at, dump, plus, row_parallel

CASE, STAGE = "stages.0.cases.0.", "stages.0."
PROOFS: list[tuple[str, Any, str]] = [
    ("version", 2, "unknown version"),
    ("format", "trainverify-plan", "unknown format"),
    ("facts.0.by", {"input": 0, "output": 0}, "by names one relation"),
    ("facts.0.by", {}, "no integer"),
    ("facts.0.by", {"input": -1}, "no integer in"),
    ("facts.0.by", [], "an object is expected"),
    ("facts.2.lhs.of", [], "a reduced tensor has members"),
    ("facts.2.lhs.kind", "mean", "unknown reduction"),
    ("facts.2.rhs", "sx", "is no tensor"),
    ("facts.2.rhs", "#b:1", "is no literal"),
    ("facts.2.rhs", "#b:", "is no literal"),
    ("facts.2.rhs", "#i:1/2", "is no literal"),
    ("facts.2.rhs", "#g:1", "is no literal"),
    ("facts.2.rhs", "#:1", "is no literal"),
    ("facts.2.rhs", "#f:true", "is no rational"),
    ("facts.2.symbols.0", ["z0", 4, 4], "an empty range"),
    ("facts.2.symbols.0", ["z0", 4, 3], "an empty range"),
    ("facts.2.symbols.1", ["z0", 0, 8], "a symbol occurs twice"),
    ("facts.2.symbols.0", ["z0", 0], "a list of 3"),
    ("facts.2.symbols.0", ["q0", 0, 4], "is reserved"),
    ("facts.2.symbols.0", ["e1", 0, 4], "is reserved"),
    ("facts.2.coef", "0", "a coefficient of zero"),
    ("facts.2.lhs_index.0", {"y": 1}, "unknown symbol"),
    ("facts.2.lhs_index.0", {"z0": 0}, "zero coefficient"),
    ("facts.2.lhs_index.0", {"": 1}, "an object without symbols"),
    ("facts.2.lhs_index.0", {}, "an object without symbols"),
    ("stages.0", 7, "an object is expected"),
    ("stages.0.kind", "guess", "unknown kind"),
    ("stages.0.goal", 4, r"no integer in \[0, 4\)"),
    ("stages.0.goal", -1, r"no integer in \[0, 4\)"),
    ("stages.0.title", "a|b", "a title has no bar"),
    ("stages.0.title", "a" * 201, "no valid text"),
    ("stages.1.symbols", [["q0", 0, 4], ["q0", 0, 4]], "a symbol occurs twice"),
    ("stages.1.symbols", [["z0", 0, 4]], "fresh symbol"),
    ("stages.1.symbols", [["q", 0, 4]], "fresh symbol"),
    ("stages.1.symbols", [["q0123456789", 0, 4]], "fresh symbol"),
    ("stages.1.symbols", [["v0", 0, 4]], "a v symbol has no range"),
    ("stages.1.symbols", [["v0", None, 4]], "a v symbol has no range"),
    ("stages.1.symbols", [["v0", 0, None]], "a v symbol has no range"),
    ("stages.1.symbols", [["q0", 0, 0]], r"no integer in \[1, "),
    ("stages.1.symbols", [["q0", 0, None]], "no integer"),
    ("stages.1.symbols", [["q0", 0]], "a list of 3"),
    ("stages.1.premises.0", 7, "stage 1, premise 1: an object with a kind is expected"),
    ("stages.1.premises.0", {"sym": "z0"}, "an object with a kind is expected"),
    ("stages.1.premises.0", {"k": ["bound"]}, "an object with a kind is expected"),
    ("stages.1.premises.0", {"k": "law", "schema": "ring"}, "unknown kind 'law'"),
    ("stages.1.premises.0", {"k": "bound", "sym": "z0", "t": "s:x"}, "unknown member 't'"),
    ("stages.1.premises.1.facts", [4], r"no integer in \[0, 4\)"),
    ("stages.1.premises.1.kind", "and", "unknown reduction"),
    ("stages.1.premises.0.arg", 7, "a list is expected"),
    ("stages.1.file", "12", "no valid text"),
    (STAGE + "classes", plus(["i", 4, 1]), "a class occurs twice"),
    (STAGE + "classes.0", ["i", 0, 0], r"no integer in \[1, "),
    (STAGE + "classes.0", ["i", 4, 0], r"no integer in \[1, "),
    (STAGE + "classes.0", ["i", 4, 5], "more representatives than elements"),
    (STAGE + "classes.0", ["e0", 4, 1], "is reserved"),
    (STAGE + "trees.0.1.0", [[-1, ["i"]]], r"no integer in \[0, "),
    (STAGE + "trees.0.1.0", [[0, ["x"]]], "unknown class 'x'"),
    (STAGE + "goal_at.0", ["x"], "unknown class 'x'"),
    (CASE + "reps.0", [-1], r"no integer in \[0, 1000000000\)"),
    (CASE + "reps.0", [10**9], r"no integer in \[0, 1000000000\)"),
    (CASE + "premises.0", {"k": "bound", "sym": "z0"}, "stage 0, case 0, premise 1: unknown kind 'bound'"),
    (CASE + "premises.2.fact", 4, r"no integer in \[0, 4\)"),
    (CASE + "premises.2.defines", "both", "defines lhs or rhs, not"),
    (CASE + "premises.2.at.0", {"t.1": 1}, "unknown symbol"),
    (CASE + "premises.5.schema", "a guess", "is no valid text here"),
    (CASE + "premises.0.e.1.0", [0, -1], "no integer in"),
]


@pytest.mark.parametrize("path,value,reason", PROOFS, ids=[f"{n} {p}" for n, (p, _, _) in enumerate(PROOFS)])
def test_proofs(path: str, value: Any, reason: str) -> None:
    proof = copy.deepcopy(row_parallel().proof)
    assert read_proof(dump(proof))
    at(path, value)(proof)
    with pytest.raises(Malformed, match=reason):
        read_proof(dump(proof))


def test_what_proofs_may_say() -> None:
    """The other side of the limits above."""
    for path, value in (
        ("facts.2.rhs", "#b:false"),
        ("facts.2.rhs", "#i:-3"),
        ("facts.2.rhs", "#f:1/2"),
        ("facts.2.symbols.0", ["z0", 3, 4]),
        ("stages.1.symbols", [["q0", 3, 4], ["v0", None, None]]),
        ("stages.1.symbols", [["q123456789", -2, 4]]),
        ("stages.0.title", "~" * 200),
        ("stages.0.title", ""),
        ("stages.1.file", "0000001"),
        (STAGE + "classes.0", ["i", 4, 4]),
        (CASE + "reps.0", [10**9 - 1]),
        ("facts.3.by", {"output": 7}),
        ("facts.2.lhs.kind", "max"),
        ("stages.1.premises.0.arg", None),
        ("stages.1.premises.0.arg", [0, 1]),
        ("stages.1.premises.1.facts", []),
    ):
        proof = copy.deepcopy(row_parallel().proof)
        at(path, value)(proof)
        assert read_proof(dump(proof)), path
    proof = copy.deepcopy(row_parallel().proof)
    at("facts.3.by", {"output": 7})(proof)
    assert dict(read_proof(dump(proof)).declared) == {0: 0, 1: 1}, "only an input relation declares"


def test_sums_have_two_terms_or_more() -> None:
    """And every other function as many as docs/certificate.md says."""
    one = ["lit", "1"]
    counts = {
        "+": (2, 3, 4, 5),
        "-": (2,),
        "neg": (1,),
        "recip": (1,),
        "fexp": (1,),
        "mul": (2,),
        "fpow": (2,),
        "max2": (2,),
        "min2": (2,),
        "cmp_le": (2,),
        "neg_inf": (0,),
        "pos_inf": (0,),
        "nonzero": (1,),
    }
    for head, right in counts.items():
        for n in range(6):
            proof = copy.deepcopy(row_parallel().proof)
            at(CASE + "premises.5.lhs", [head, *[one] * n])(proof)
            if n in right:
                assert read_proof(dump(proof)), head
            else:
                with pytest.raises(Malformed, match="a list of"):
                    read_proof(dump(proof))
    for term, good in ((["*", "2"], False), (["*", "2", one], True), (["*", "2", one, one], False)):
        proof = copy.deepcopy(row_parallel().proof)
        at(CASE + "premises.5.lhs", term)(proof)
        if good:
            assert read_proof(dump(proof))
        else:
            with pytest.raises(Malformed, match="a list of 3"):
                read_proof(dump(proof))


@pytest.mark.parametrize("count", [64, 65])
def test_a_piece_has_at_most_64_classes(count: int) -> None:
    """Each class multiplies the strides before it: without the cap a short line makes numbers without end."""
    proof = copy.deepcopy(row_parallel().proof)
    at("stages.0.trees.2.1.2", [[0, ["j"] * count]])(proof)
    if count == 64:
        stage = read_proof(dump(proof)).stages[0]
        assert isinstance(stage, AlgebraStage)
        ((_, classes, strides),) = stage.trees[2][1][2]
        assert len(classes) == 64 and strides == tuple(8**k for k in reversed(range(64)))
    else:
        with pytest.raises(Malformed, match="a piece of more than 64 classes"):
            read_proof(dump(proof))


def test_references() -> None:
    assert str(read_ref("c0:%1", "x")) == "c0:%1"
    for wrong in ("", "c0", "#b:maybe", 7, None, ["s:x"]):
        with pytest.raises(Malformed):
            read_ref(wrong, "x")


# Manifests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path,value,reason",
    [
        ("version", 3, "unknown version"),
        ("version", 0, "unknown version"),
        ("status", "sat", "unknown status"),
        ("verdicts.0.reason", 7, "a text is expected"),
        ("verdicts.0.verdict", "VALID", "unknown verdict"),
        ("format", "zip", "format"),
        ("solvers", [], "an object is expected"),
        ("solvers", {"z3": 4}, "no valid text"),
        ("solvers", {"z3": "4\n"}, "no valid text"),
    ],
)
def test_manifests(path: str, value: Any, reason: str) -> None:
    refuses_manifest(row_parallel(), at(path, value), reason)


@pytest.mark.parametrize(
    "members,reason",
    [
        ([], "an object is expected"),
        ({"plan.json": "0" * 64}, "proof.json is missing"),
        (plus({"plan.json": "0" * 63}), "no valid text"),
        (plus({"../x": "0" * 64}), "no valid text"),
        (plus({"obligations/12.smt2": "0" * 64}), "no valid text"),
        (plus({"obligations/0001.smt2.gz": "0" * 64}), "no valid text"),
    ],
)
def test_manifests_of_version_1_list_the_members(members: Any, reason: str) -> None:
    bundle = row_parallel()
    bundle.version = 1
    refuses_manifest(bundle, at("members", members), reason)


def refuses_manifest(bundle: Any, change: Any, reason: str) -> None:
    data = bundle.members()
    assert read_manifest(data)
    manifest = json.loads(data["manifest.json"])
    change(manifest)
    with pytest.raises(Malformed, match=reason):
        read_manifest(data | {"manifest.json": dump(manifest)})


ZEROS = b"0" * 64


@pytest.mark.parametrize(
    "name,change,reason",
    [
        ("bagit.txt", lambda d: d.replace(b"1.0", b"0.97"), "bagit.txt: no bag of version 1.0"),
        ("bagit.txt", lambda d: None, "bagit.txt: no bag"),
        ("manifest-sha256.txt", lambda d: None, "manifest-sha256.txt is missing"),
        ("tagmanifest-sha256.txt", lambda d: None, "tagmanifest-sha256.txt is missing"),
        ("manifest-sha256.txt", lambda d: d[:-1], "is not of the form 'SHA-256  NAME'"),
        ("manifest-sha256.txt", lambda d: d + b"\n", "is not of the form"),
        ("manifest-sha256.txt", lambda d: d.replace(b"  ", b" ", 1), "is not of the form"),
        ("manifest-sha256.txt", lambda d: d.replace(b"data/", b"", 1), "is not of the form"),
        ("manifest-sha256.txt", lambda d: d + d[: d.index(b"\n") + 1], "a name occurs twice"),
        ("manifest-sha256.txt", lambda d: d + ZEROS + b"  data/../x\n", "no valid text"),
        ("manifest-sha256.txt", lambda d: d + ZEROS + b"  data/bagit.txt\n", "no valid text"),
        ("manifest-sha256.txt", lambda d: d.replace(b"proof", b"witness"), "member proof.json is missing"),
        (
            "tagmanifest-sha256.txt",
            lambda d: d + ZEROS + b"  more.txt\n",
            "tagmanifest-sha256.txt lists bag-",
        ),
        (
            "tagmanifest-sha256.txt",
            lambda d: d[d.index(b"\n") + 1 :],
            "tagmanifest-sha256.txt lists bag-info",
        ),
    ],
)
def test_bags(name: str, change: Any, reason: str) -> None:
    """Lists are read strictly: another spelling could hide a file from one tool and not from another."""
    data = row_parallel().members()
    changed = change(data.pop(name))
    with pytest.raises(Malformed, match=reason):
        read_manifest(data if changed is None else data | {name: changed})


def test_reasons_are_cut_and_printable() -> None:
    data = row_parallel().members()
    manifest = json.loads(data["manifest.json"])
    at("verdicts.0.reason", "a\x1b[2J" + "b" * 2000)(manifest)
    reason = read_manifest(data | {"manifest.json": dump(manifest)}).verdicts[0][3]
    assert reason == "a[2J" + "b" * 995, "1000 characters, and no control characters of a terminal"
