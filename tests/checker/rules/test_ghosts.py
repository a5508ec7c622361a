"""Obligation 21: ghosts are computed from the plan's tensors, without effect on it, and no claim has one."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import trainverify
from checker import kernel
from checker.errors import CheckerError, Rejected
from checker.reading.bundle import read_bundle
from checker.reading.plan import read_plan
from checker.reading.proof import read_manifest, read_proof
from checker.rules.ghosts import GHOSTS, check_ghosts
from tests.orchestrator.ghosts.merged import MERGED

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, refuses


@cache
def bundle(where: Path, name: str = "by_logarithms") -> dict[str, bytes]:
    trainverify.emit(MERGED[name](True), out=where)
    return dict(read_bundle(where))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return bundle(tmp_path_factory.mktemp("ghosts") / "bundle")


def examined(data: dict[str, bytes], proof: Any) -> kernel.Examined:
    """The bundle with another proof, digests made to fit."""
    manifest = read_manifest(data)
    members = {**data, "proof.json": dump(proof)}
    digests = {**manifest.members, "proof.json": hashlib.sha256(members["proof.json"]).hexdigest()}
    plan = read_plan(data["plan.json"])
    return kernel.examine(
        manifest._replace(members=digests),
        plan,
        read_proof(members["proof.json"], data["plan.json"]),
        members,
    )


def proof_of(data: dict[str, bytes]) -> Any:
    return json.loads(data["proof.json"])


def test_the_proof_has_ghosts_in_both_programs(data: dict[str, bytes]) -> None:
    proof = proof_of(data)
    assert set(proof["ghosts"]["main"]) == {"s", "c0"}
    assert len(examined(data, proof).stages) > 10
    named = json.dumps(proof["facts"])
    assert all(f'"c0:{g[0]}"' in named for g in proof["ghosts"]["main"]["c0"][-1:])


def test_without_its_ghosts_a_proof_speaks_of_nothing(data: dict[str, bytes]) -> None:
    proof = proof_of(data)
    del proof["ghosts"]
    with refuses(3, "there is no tensor"):
        examined(data, proof)


@pytest.mark.parametrize(
    ("ghost", "said"),
    [
        (op("%900", "reduce", ["x"], "f32[2]", dims=[1], kind="max"), "a ghost is no reduce max"),
        (op("%900", "maximum", ["x", "x"], "f32[2,6]"), "a ghost is no maximum"),
        (op("%900", "tanh", ["x"], "f32[2,6]"), "a ghost is no tanh"),
        (op("%900", "all_reduce", ["x"], "f32[2,6]", group="tp", kind="add", seq=900), "no all_reduce add"),
        (op("%900", "send", ["x"], "f32[2,6]", seq=900, to=[0]), "a ghost is no send"),
    ],
)  # fmt: skip
def test_a_ghost_is_one_of_few_ops(data: dict[str, bytes], ghost: Any, said: str) -> None:
    """A maximum would add an assumption of the prover's making; a message would change the plan."""
    proof = proof_of(data)
    proof["ghosts"]["main"]["c0"].append(ghost)
    with refuses(21, said) if "send" not in said else pytest.raises(Exception, match="message"):
        examined(data, proof)


def test_a_ghost_may_not_be_infinite_where_no_plan_may(data: dict[str, bytes]) -> None:
    proof = proof_of(data)
    proof["ghosts"]["main"]["c0"] += [
        op("%900", "constant", [], "f32[2]", value="-inf"),
        op("%901", "multiply", ["%900", "%900"], "f32[2]"),
    ]
    with refuses(2, "reaches multiply"):
        examined(data, proof)


def test_another_ghost_is_another_proof(data: dict[str, bytes]) -> None:
    """Another function in place of each; of a few, which are letters only, no stage needs to know it."""
    others = {"add": "subtract", "multiply": "divide", "divide": "multiply", "exponential": "log"}
    tried, refused = 0, 0
    for i, ghost in enumerate(proof_of(data)["ghosts"]["main"]["c0"]):
        if ghost[1] in others:
            forged = proof_of(data)
            forged["ghosts"]["main"]["c0"][i][1] = others[ghost[1]]
            tried += 1
            try:
                examined(data, forged)
            except CheckerError as error:
                refused += 1
                assert isinstance(error, Rejected) and error.number in (2, 5, 7, 12)
    assert tried > 10 and refused > 0.8 * tried


def test_an_extended_plan_that_is_another_one_is_refused(data: dict[str, bytes]) -> None:
    plan = read_plan(data["plan.json"])
    check_ghosts(plan, plan)
    less = replace(plan.spec, ops=plan.spec.ops[:-1])
    moved = replace(plan.spec, outputs={"y": "x"})
    for spec in (less, moved):
        with refuses(21, "the program with ghosts is another one"):
            check_ghosts(plan, replace(plan, spec=spec))
    with refuses(21, "the plan with ghosts is another one"):
        check_ghosts(plan, replace(plan, inputs=plan.inputs[:1]))
    with refuses(21, "the plan with ghosts is another one"):
        check_ghosts(plan, replace(plan, ranges={"x": (0, 1)}))


def test_no_ghost_has_an_effect() -> None:
    assert not any(name.startswith(("all_", "send", "recv", "call", "reduce_")) for name in GHOSTS)
