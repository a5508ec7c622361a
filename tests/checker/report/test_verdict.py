"""What `tv-check` prints, without a solver: answers are given."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from certificates.plan.plan import Plan
from checker import solvers as replay
from checker.cli import main, read_policy
from checker.errors import Malformed
from checker.kernel import _SEAL, Output, Verified
from checker.language.proof import AlgebraStage, Case, Law, Lemma, Proof
from checker.reading.plan import read_plan
from checker.reading.proof import read_proof
from checker.refuting.witness import Replay
from checker.refuting.witnesses import witnesses
from checker.report.verdict import final_line, folded, laws_used, provenance, rounded, shown, trusted_base
from orchestrator.emit import emit

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import Bundle, dump, piece, program, relation, row_parallel, shards, z
from samples import answers as offline


def tv_check(folder: Path, *options: str, answers: str = "0001 unsat\n0002 unsat\n") -> tuple[int, list[str]]:
    """With two files of answers and no solver."""
    for name in ("one", "two"):
        (folder.parent / name).write_text(offline(folder, name, answers))
        options = (*options, "--answers", str(folder.parent / name))
    result = CliRunner().invoke(main, [str(folder), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.splitlines()


@pytest.fixture(autouse=True)
def no_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RUNNERS", {})


OUTSIDE = [
    "outside the claim: floating-point rounding (numbers are reals and unbounded integers)",
    "outside the claim: values of ops outside their domain (functions are total here; see the domains that "
    "are not shown)",
    "outside the claim: random-number streams", "outside the claim: data loading",
    "outside the claim: deadlock and schedules",
    "outside the claim: that the captured graphs are what the framework runs",
    "outside the claim: README, scripts, schemas, table and checker of the bundle, which are not checked",
    "report.txt and report.html are what this checker writes of the bundle",
]  # fmt: skip
INVARIANT = [
    "claim: the step is an INVARIANT of the run: outputs agree after any number of steps if",
    "  every state leaves the step under the relation that it enters under, at every rank (checked)",
    "  the initial state satisfies the input relation",
    "  what is given anew is given to all ranks as the input relation says, at every step",
    "  nothing changes what is declared constant",
    "  random masks are declared inputs",
    "  control path and shapes are the same in every step (a short last batch is another program)",
]  # fmt: skip


def test_the_report_of_a_valid_bundle(tmp_path: Path) -> None:
    bundle = row_parallel()
    digest = read_plan(dump(bundle.plan)).digest
    code, lines = tv_check(bundle.write(tmp_path / "b"))
    tags = sha256((tmp_path / "b/tagmanifest-sha256.txt").read_bytes()).hexdigest()
    assert code == 0 and lines == [
        f"plan sample, tp 2, digest {digest}", "  PROVED  y f32[4,8] = y f32[4,8]; tp Replicate",
        "2 of 2 obligations confirmed by one",
        "2 of 2 obligations confirmed by two",
        "1 of 1 obligations of algebra confirmed by the solver-free normaliser too; 1 of all 2 rest on the "
        "solvers alone",
        "trusted for the answers of one: whoever made one (of 1)",
        "trusted for the answers of two: whoever made two (of 1)",
        f"bundle {tags}, the SHA-256 of tagmanifest-sha256.txt",
        "2 proof cases in 2 stages", "laws used: ring 1 times",
        "given anew at each step (declared, not proved), 2: w, x",
        'provenance: tool: "by hand"', *OUTSIDE, *INVARIANT,
        "VALID: all 1 outputs equal the single-device model's under the stated relations"]  # fmt: skip
    code, more = tv_check(tmp_path / "b", "--trusted-base")
    assert more[:11] == [
        "trusted: the reduction theorem (DESIGN section 3), for 1 algebra stages",
        "trusted: law ring, used 1 times: identities of commutative rings over `mul`, + and -, with rational "
        "coefficients",
        "trusted: laws that this bundle does not use: lattice, recip, root, field",
        "trusted: functions without a meaning but these laws: mul (in 1 files)",
        "trusted: op semantics: all_reduce, dot_general", "trusted: opaque kernels: none",
        "trusted: solvers: one, two",
        "trusted: the Python interpreter and its standard library, click",
        "trusted: of this checker: errors, language, reading, rules, kernel, solvers, endings, cli, starting",
        'trusted: tool: "by hand"', lines[0]]  # fmt: skip


def test_the_report_of_what_is_not_proved(tmp_path: Path) -> None:
    bundle = row_parallel()
    code, lines = tv_check(bundle.write(tmp_path / "b"), answers="0001 unsat\n0002 sat\n")
    reason = "obligations/0002.smt2: one says sat, two says sat"
    assert (code, lines[1]) == (
        3,
        f"  UNKNOWN y f32[4,8] = y f32[4,8]; tp Replicate: {reason} (stage all-reduce)",
    )
    assert lines[2] == "1 of 2 obligations confirmed by one"
    assert lines[-3:] == [
        "claim: ONE STEP only; the step is not shown to be an invariant of the run, because",
        "  y is not proved", "UNKNOWN: 1 of 1 outputs are not proved; no success"]  # fmt: skip


def test_what_else_is_reported(tmp_path: Path) -> None:
    """Ranges that are assumed, outputs that nobody claims, the absence of a mesh."""
    plan: dict[str, Any] = row_parallel().plan
    own = program([["n", "i64[2]"]], [], [["n", "n"], ["spare", "n"]])
    whole = piece("c0", [2], [z(0)], [z(0)])
    del plan["given"]
    plan |= {"mesh": [], "groups": {}, "specification": program([["n", "i64[2]"]], [], [["n", "n"]]),
             "classes": [{"name": "c0", "box": {}, "program": own}], "inputs": [relation("n", "n", whole)],
             "outputs": [relation("n", "n", whole)], "ranges": {"n": [-1, 5]}}  # fmt: skip
    bundle = Bundle(plan, {"format": "trainverify-proof", "version": 1, "facts": [], "stages": []}, {},
                    [{"spec": "n", "plan": "n", "verdict": "UNKNOWN", "reason": "not tried"}])  # fmt: skip
    code, lines = tv_check(bundle.write(tmp_path / "b"), answers="")
    assert code == 3 and lines[0].startswith("plan sample, one rank, digest ")
    assert lines[1] == "  UNKNOWN n i64[2] = n i64[2]: not tried"
    assert "assumption: n lies in [-1, 5)" in lines
    assert "not claimed: plan output spare has no relation" in lines
    assert not any("plan output n " in line for line in lines)
    assert "  the declared range of the state n is not re-established" in lines


@pytest.mark.parametrize(
    ("coef", "reduce", "said"),
    [
        ("1", None, "y f32[4,8] = y f32[4,8]; tp Replicate"),
        ("-7", ["add", ["tp"]], "sum over tp of y f32[4,8] = -7 * y f32[4,8]; tp Partial(sum)"),
        ("1/2", None, "y f32[4,8] = 1/2 * y f32[4,8]; tp Replicate"),
        ("1", ["max", ["tp"]], "maximum over tp of y f32[4,8] = y f32[4,8]; tp Partial(max)"),
        ("1", ["min", ["tp"]], "minimum over tp of y f32[4,8] = y f32[4,8]; tp Partial(min)"),
    ],
)
def test_a_claim_names_its_coefficient_and_its_reduction(
    coef: str, reduce: Any, said: str, tmp_path: Path
) -> None:
    """`y = y` would say that the plan has the specification's gradient, not -7 times it, in parts."""
    bundle = row_parallel()
    bundle.plan["outputs"][0] |= {"coef": coef, "reduce": reduce}
    bundle.proof |= {"facts": [], "stages": []}
    bundle.files = {}
    bundle.verdicts[0] |= {"verdict": "UNKNOWN", "reason": "not tried"}
    assert tv_check(bundle.write(tmp_path / "b"), answers="")[1][1] == f"  UNKNOWN {said}: not tried"


def test_the_number_of_jobs(tmp_path: Path) -> None:
    folder = row_parallel().write(tmp_path / "b")
    for jobs, code in (("0", 2), ("1", 0), ("256", 0), ("257", 2)):
        assert tv_check(folder, "--jobs", jobs)[0] == code
    assert next(p.default for p in main.params if p.name == "jobs") == 2


def test_json(tmp_path: Path) -> None:
    code, lines = tv_check(row_parallel().write(tmp_path / "b"), "--json")
    item = json.loads("\n".join(lines))
    assert (code, item["exit_code"], item["verdict"][:5], item["invariant"]) == (0, 0, "VALID", True)
    assert item["outputs"] == [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}]
    assert (item["states"], item["given"], item["constants"]) == ([], ["w", "x"], [])
    assert (
        item["digest"] == read_plan(dump(row_parallel().plan)).digest and item["lines"][-1] == item["verdict"]
    )
    bundle = row_parallel()
    bundle.files["0001"] += "x"
    code, lines = tv_check(bundle.write(tmp_path / "c"), "--json")
    item = json.loads("\n".join(lines))
    assert (code, item["obligation"], item["verdict"].split(":")[0]) == (1, 12, "INVALID")


def test_your_own_plan(tmp_path: Path) -> None:
    folder = row_parallel().write(tmp_path / "b")
    (tmp_path / "plan.json").write_bytes((folder / "data/plan.json").read_bytes())
    assert tv_check(folder, "--plan", str(tmp_path / "plan.json"))[0] == 0
    (tmp_path / "plan.json").write_bytes(dump(shards().plan))
    code, lines = tv_check(folder, "--plan", str(tmp_path / "plan.json"))
    assert (code, lines) == (1, ["INVALID: obligation 1 (members) fails: the bundle's plan is not the plan "
                                 "you gave"])  # fmt: skip
    (tmp_path / "plan.json").write_bytes(b'{"format": "trainverify-plan"}')
    code, lines = tv_check(folder, "--plan", str(tmp_path / "plan.json"))
    assert code == 5 and lines[0].startswith("MALFORMED: plan: "), "no plan: the bundle is not to blame"


def test_policies(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    for text, want in (("{}", (2, True)), ('{"confirmations":1}', (1, True)),
                       ('{"confirmations":9,"shape_reduction":true}', (9, True)),
                       ('{"shape_reduction":false}', (2, False))):  # fmt: skip
        path.write_text(text)
        found = read_policy(path)
        assert (found.confirmations, found.reductions) == want
    for wrong in ('{"confirmations":0}', '{"confirmations":10}', '{"confirmations":2.0}', '{"x":1}', "[]",
                  '{"shape_reduction":1}', '{"shape_reduction":"false"}',
                  '{"shape_reduction":null}'):  # fmt: skip
        path.write_text(wrong)
        with pytest.raises(Malformed):
            read_policy(path)
    path.write_text('{"confirmations":9}')
    code, lines = tv_check(row_parallel().write(tmp_path / "b"), "--policy", str(path))
    assert (code, lines) == (4, ["SOLVER MISSING: 9 solvers must confirm, there is one, two"])  # fmt: skip
    result = CliRunner().invoke(main, [str(tmp_path / "b")])
    assert result.output == "SOLVER MISSING: 2 solvers must confirm, there is none\n"


def test_shape_reduction_is_a_matter_of_policy(tmp_path: Path) -> None:
    """Refused where algebra stages rest on it; layout stages alone do not."""
    (tmp_path / "policy.json").write_text('{"shape_reduction":false}')
    policy = ("--policy", str(tmp_path / "policy.json"))
    code, lines = tv_check(shards().write(tmp_path / "layout"), *policy)
    assert code == 0 and any(line.startswith("0 of 0 obligations of algebra") for line in lines)
    code, lines = tv_check(row_parallel().write(tmp_path / "algebra"), *policy)
    assert (code, lines) == (3, [
        "UNKNOWN: the policy does not accept shape reduction, on which algebra stages rest"])  # fmt: skip


def test_what_a_bundle_prints_cannot_move_the_cursor(tmp_path: Path) -> None:
    bundle = row_parallel()
    bundle.proof |= {"facts": [], "stages": []}
    bundle.files = {}
    bundle.plan["provenance"] = {"tool\x1b[1A": "\u202e"}
    bundle.verdicts[0] |= {"verdict": "UNKNOWN", "reason": "no\x1b[1A"}
    _, lines = tv_check(bundle.write(tmp_path / "b"), answers="")
    assert lines[1] == "  UNKNOWN y f32[4,8] = y f32[4,8]; tp Replicate: no[1A" and all(
        line.isprintable() for line in lines
    )
    assert 'provenance: tool?[1A: "\\u202e"' in lines


def test_provenance_is_cut() -> None:
    plan: dict[str, Any] = row_parallel().plan
    plan["provenance"] = {"k" * 61: "v" * 300, "a": [1]}
    assert provenance(read_plan(dump(plan))) == ["a: [1]", "k" * 60 + ': "' + "v" * 199]


def test_nesting_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_parallel().write(tmp_path / "b")

    def deep(*_: Any) -> None:
        raise RecursionError

    for error, want in ((deep, "MALFORMED: nested too deeply"),):
        monkeypatch.setattr("checker.kernel.examine", error)
        assert tv_check(folder) == (5, [want])


@pytest.mark.parametrize(
    "kinds,code,line",
    [
        (
            ["PROVED"] * 2,
            0,
            "VALID: all 2 outputs equal the single-device model's under the stated relations",
        ),
        (["PROVED", "UNKNOWN"], 3, "UNKNOWN: 1 of 2 outputs are not proved; no success"),
        ([], 3, "UNKNOWN: 0 of 0 outputs are not proved; no success"),
        (["UNKNOWN", "REFUTED"], 1, "REFUTED: 1 of 2 outputs provably differ from the single-device model"),
        (["REFUTED", "PROVED"], 1, "REFUTED: 1 of 2 outputs provably differ from the single-device model"),
    ],
)
def test_the_last_line(kinds: list[str], code: int, line: str) -> None:
    """Nothing claimed is no success."""
    verified = Verified(tuple(Output("y", "y", kind, "") for kind in kinds), (), _SEAL)
    assert final_line(verified) == (code, line)


def test_numbers_are_rounded() -> None:
    assert [rounded(Fraction(n)) for n in ("1/3", "-5", "0")] == ["0.333333333", "-5", "0"]
    assert [rounded(Fraction(s * 10**400)) for s in (1, -1)] == ["1e308 or more", "-1e308 or less"]


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"output": 1}, r"witness: output: 1 is no integer in \[0, 1\)"),
        ({"output": -1}, "witness: output: -1"),
        ({"piece": 1}, r"witness: piece: 1 is no integer in \[0, 1\)"),
        ({"piece": None}, "witness: piece: None"),
        ({"extra": 1}, "unknown member 'extra'"),
    ],
)
def test_witness_files(change: dict[str, Any], reason: str) -> None:
    bundle = row_parallel()
    plan = read_plan(dump(bundle.plan))
    claimed = bundle.examine().claimed
    assert witnesses(plan, {}, claimed) == {}
    item = {"output": 0, "piece": 0, "junk": "0", "inputs": {}, "symbols": {}}
    with pytest.raises(Malformed, match=reason):
        witnesses(plan, {"witness.json": dump(item | change)}, claimed)
    with pytest.raises(Malformed, match="witness: an object is expected"):
        witnesses(plan, {"witness.json": b"[]\n"}, claimed)


def test_what_a_witness_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = row_parallel()
    plan, claimed = read_plan(dump(bundle.plan)), bundle.examine().claimed
    half, two = (Fraction(0), Fraction(1, 2)), (Fraction(2), Fraction(2))
    for symbols, sides, want in (
        ({"z1": 1, "tp": 0}, (half, two),
         "gives a number from 0 to 0.5 on the plan's side and 2 on the specification's at tp = 0, z1 = 1"),
        ({}, (None, two), "gives no real number on the plan's side and 2 on the specification's"),
    ):  # fmt: skip
        found = Replay(symbols, *sides)
        monkeypatch.setattr("checker.refuting.witnesses.replay", lambda *_, found=found: found)
        item = {"output": 0, "piece": 0}
        assert witnesses(plan, {"witness.json": dump(item)}, claimed) == {0: found}
        assert shown(found) == f"the witness {want}"


def test_many_lines_that_differ_in_numbers_only_are_folded() -> None:
    """A plan of 126 layers has thousands of outputs; one without a proof is still named."""
    many = [f"  PROVED  w.{k}" for k in range(200)]
    assert folded(many) == many
    open_ = ["  UNKNOWN w.7: why 1", "  UNKNOWN w.8: why 1"]
    found = folded([*many[:50], open_[0], *many[50:], open_[1], "  PROVED  y"])
    assert found == ["  PROVED  w.# (200 such lines)", *open_, "  PROVED  y"]


def test_laws_are_counted_as_the_records_use_them() -> None:
    """A reader who does not accept a law sees whether this bundle needs it, in lemmas too."""
    case = Case((), tuple(Law(schema, None, None) for schema in ("ring", "root", "ring")), "0001")
    stage = AlgebraStage(0, "", {}, (), (), (case, case))
    lemma = Lemma("f0", (), (stage,), ())
    files = [b"(declare-fun fexp (Real) Real)\n(declare-fun e0 () Real)", b"(declare-fun fexp (Real) Real)"]
    plan, proof = read_plan(dump(row_parallel().plan)), Proof((), {}, (stage,), (lemma,))
    lines = trusted_base(plan, proof, files, ["z3"], True)
    assert lines[-2].endswith("solvers, endings, cli, starting, refuting (for the witness)")
    assert lines[0] == "trusted: the reduction theorem (DESIGN section 3), for 2 algebra stages"
    said = [line.split(":")[1] for line in lines[1:3]]
    assert said == [" law ring, used 8 times", " law root, used 4 times"]
    assert lines[3:5] == [
        "trusted: laws that this bundle does not use: lattice, recip, field",
        "trusted: functions without a meaning but these laws: fexp (in 2 files)",
    ]


def test_a_bundle_tells_the_laws_that_the_checker_counts(mlp: Plan, tmp_path: Path) -> None:
    """report.txt counts them in the bytes of the proof, tv-check in its records."""
    emit(mlp, tmp_path / "b", solve=False)
    laws = laws_used(read_proof((tmp_path / "b/data/proof.json").read_bytes()))
    lines = (tmp_path / "b/data/report.txt").read_text().splitlines()
    at = lines.index("Laws used")
    assert laws["ring"] > 1
    assert lines[at + 1 : lines.index("", at)] == [f"  {law} {n} times" for law, n in sorted(laws.items())]
