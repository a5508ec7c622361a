"""The kernel's own checks: facts, files and their numbers, how a verdict comes about."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checker import kernel
from checker.errors import Rejected, Undecided
from checker.language.proof import Fact
from checker.reading.plan import read_plan
from checker.reading.proof import read_manifest, read_proof
from checker.rules.model import Model
from checker.rules.relations import relation_facts

sys.path.insert(0, str(Path(__file__).parent))
from samples import Bundle, dump, op, piece, plan_of, program, refuses, relation, row_parallel, shards, z

ALL = {"0001": "unsat", "0002": "unsat"}


# Members and files ------------------------------------------------------------------------------------------


def examine(bundle: Bundle, data: dict[str, bytes]) -> kernel.Examined:
    own = bundle.members()
    return kernel.examine(
        read_manifest(own), read_plan(own["plan.json"]), read_proof(own["proof.json"]), data
    )


def test_every_member_is_there() -> None:
    bundle = row_parallel()
    data = bundle.members()
    assert examine(bundle, data).cases == 2
    for name in data:
        rest = {k: v for k, v in data.items() if k != name}
        with refuses(1, f"{name} is missing or not what the manifest lists"):
            examine(bundle, rest)


def test_files_are_numbered_in_order_of_first_use() -> None:
    bundle = row_parallel()
    bundle.files = {"0001": bundle.files["0002"], "0002": bundle.files["0001"]}
    bundle.proof["stages"][0]["cases"][0]["file"], bundle.proof["stages"][1]["file"] = "0002", "0001"
    with refuses(12, "obligations/0002.smt2 is not numbered in order of first use"):
        bundle.examine()


@pytest.mark.parametrize(
    "change,line,expected,found",
    [
        (lambda t: t.replace("QF_UFLRA", "ALL"), 2, "(set-logic QF_UFLRA)", "(set-logic ALL)"),
        (lambda t: t + "\n", 32, "", ""),
        (lambda t: t.removesuffix("(exit)\n"), 31, "(exit)", ""),
        (lambda t: t.replace("(check-sat)\n(exit)\n", ""), 30, "(check-sat)", ""),
        (lambda t: "", 1, "(set-info :smt-lib-version 2.6)", ""),
        (lambda t: t[:-1], 32, "", "the end"),
    ],
)
def test_the_first_line_that_differs_is_named(change: Any, line: int, expected: str, found: str) -> None:
    """Whoever looks for the fault finds it at this line, in both texts."""
    bundle = row_parallel()
    bundle.files["0001"] = change(bundle.files["0001"])
    with pytest.raises(Rejected) as caught:
        bundle.examine()
    assert caught.value.number == 12
    assert caught.value.detail == (
        f"obligations/0001.smt2, line {line}: expected {expected!r}, found {found!r}"
    )


def test_bundles_of_version_1_are_checked_with_the_logics_that_they_have() -> None:
    """Whoever has a certificate of the first version can still check it; its texts are what they were."""
    bundle = shards()
    bundle.version = 1
    with refuses(12, r"0001.smt2, line 2: expected '.set-logic QF_UFLIRA.', found '.set-logic QF_UFLIA.'"):
        bundle.examine()
    first = {"QF_UFLIA": "QF_UFLIRA", "(declare-sort Value 0)\n": "", " Value)": " Real)"}
    for new, old in first.items():
        bundle.files = {name: text.replace(new, old) for name, text in bundle.files.items()}
    assert conclude(bundle).outputs[0].verdict == "PROVED"
    bundle.version = 2
    with refuses(12, "line 2: expected '.set-logic QF_UFLIA.', found '.set-logic QF_UFLIRA.'"):
        bundle.examine()


def test_cases_share_a_file_that_agrees_but_for_comments() -> None:
    """Two stages about alike tensors have one file: later texts are compared without their comment lines."""
    bundle = row_parallel()
    spec, own = bundle.plan["specification"], bundle.plan["classes"][0]["program"]
    for owner in (spec, own):
        owner["inputs"] += [["m", "f32[2]"], ["n", "f32[2]"]]
    bundle.plan["inputs"] += [relation(v, v, piece("c0", [2], [z(0)], [z(0)])) for v in "mn"]
    facts, goals = bundle.proof["facts"], []
    for k, v in enumerate("mn"):
        fact = {
            "lhs": f"c0:{v}",
            "rhs": f"s:{v}",
            "coef": "1",
            "symbols": [["tp", 0, 2], ["z0", 0, 2]],
            "lhs_index": [{"tp": 1}, z(0)],
            "rhs_index": [z(0)],
        }
        facts += [fact | {"by": {"input": 2 + k}}, fact | {"by": None}]
        goals.append(len(facts) - 1)
    for goal in goals:
        bundle.proof["stages"].append(
            {
                "kind": "layout",
                "goal": goal,
                "title": "again",
                "file": "0003",
                "symbols": [],
                "premises": [
                    {"k": "hyp", "facts": [goal - 1], "at": [{"tp": 1}, z(0)], "lift": [], "kind": "add"}
                ],
            }
        )
    head = bundle.files["0002"].split(";")[0]
    bundle.files["0003"] = head + "\n".join(
        [
            "; again",
            "(declare-sort Value 0)",
            "(declare-fun tp () Int)",
            "(declare-fun z0 () Int)",
            "; t0 = c0:m input f32[2] ranks tp 0..1",
            "(declare-fun t0 (Int Int) Value)",
            "; t1 = s:m input f32[2]",
            "(declare-fun t1 (Int) Value)",
            "(assert (! (= (t0 tp z0) (t1 z0)) :named hyp.1))",
            "(assert (! (not (= (t0 tp z0) (t1 z0))) :named goal))",
            "(check-sat)",
            "(exit)",
            "",
        ]
    )
    examined = bundle.examine()
    assert sorted(examined.files) == ["0001", "0002", "0003"] and examined.cases == 4
    bundle.proof["stages"][-1]["premises"] = []
    with refuses(12, "obligations/0003.smt2, line 12: expected '.assert .! .not .*, found '.assert .! .= "):
        bundle.examine()


def test_only_what_the_normaliser_confirms_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_parallel().examine().normalised == {"0001"}
    for error in (Undecided("too large"), RecursionError(), None):

        def fail(*_: Any, error: Any = error) -> bool:
            if error is not None:
                raise error
            return False

        monkeypatch.setattr(kernel, "Normaliser", lambda _, fail=fail: SimpleNamespace(equal=fail))
        assert row_parallel().examine().normalised == set(), "no verdict depends on it"


# Facts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"lhs_index": [z(0)]}, r"c0:%0.* has 2 coordinates, 1 given"),
        ({"rhs_index": [z(0), z(1), 0]}, "s:%0 has 2 coordinates, 3 given"),
        ({"rhs_index": [z(0), {"z1": 1, "": 1}]}, "an index of s:%0 may leave its range"),
        ({"lhs_index": [{"z0": 1, "": -1}, z(1)]}, r"an index of add over tp of .* may leave its range"),
    ],
)
def test_facts(change: dict[str, Any], reason: str) -> None:
    bundle = row_parallel()
    bundle.proof["facts"][2] |= change
    with refuses(3, reason):
        bundle.examine()


def test_a_declared_fact_cites_a_relation_that_exists() -> None:
    bundle = row_parallel()
    for number in (2, 7):
        bundle.proof["facts"][0]["by"] = {"input": number}
        with refuses(3, "this is no fact of the input relation it cites"):
            bundle.examine()


def test_facts_of_relations() -> None:
    """One per piece, in the order of the pieces; for partial tensors one per group of alike pieces, whose
    members stand in plan order."""
    own = program([["x", "f32[2]"]], [op("%0", "negate", ["x"], "f32[2]")], [["y", "%0"]])
    spec = program([["x", "f32[4]"]], [op("%0", "negate", ["x"], "f32[4]")], [["y", "%0"]])
    boxes = [{"a": [i, i + 1], "b": [0, 2]} for i in range(2)]
    same = [piece(f"c{i}", [2], [z(0)], [{"b": 2, "z0": 1}]) for i in (1, 0)]
    plan = read_plan(
        dump(
            plan_of(
                [["a", 2], ["b", 2]],
                spec,
                [{"name": f"c{i}", "box": box, "program": own} for i, box in enumerate(boxes)],
                [relation("x", "x", *same, coef="2", reduce=["add", ["a"]])],
                [
                    relation(
                        "y",
                        "y",
                        piece("c0", [2], [z(0)], [z(0)]),
                        piece("c1", [2], [z(0)], [{"z0": 1, "": 2}]),
                    )
                ],
            )
        )
    )
    (partial,) = relation_facts(plan, plan.inputs[0], "inputs")
    assert [str(t) for t in partial.lhs.of] == ["c0:x", "c1:x"]  # type: ignore[union-attr]
    assert (str(partial.rhs), partial.coef, partial.symbols) == ("s:x", 2, (("b", 0, 2), ("z0", 0, 2)))
    alone = replace(plan.inputs[0], reduce=("add", ("b",)), pieces=plan.inputs[0].pieces[1:])
    (within,) = relation_facts(plan, alone, "inputs")
    assert [str(t) for t in within.lhs.of] == ["c0:x"]  # type: ignore[union-attr]
    first, second = relation_facts(plan, plan.outputs[0], "outputs")
    assert [str(f.lhs) for f in (first, second)] == ["c0:%0", "c1:%0"] and str(first.rhs) == "s:%0"
    assert second.symbols == (("a", 1, 2), ("b", 0, 2), ("z0", 0, 2))
    assert [f.const for f in (*second.lhs_index, *second.rhs_index)] == [0, 0, 0, 2]
    assert isinstance(first, Fact) and Model(plan).ranges(first.lhs) == ((0, 1), (0, 2), (0, 2))


# Verdicts ---------------------------------------------------------------------------------------------------


def conclude(bundle: Bundle, answers: Any = None, confirmations: int = 2, refuted: Any = None) -> Any:
    given = answers if answers is not None else {"a": ALL, "b": ALL}
    return kernel.conclude(bundle.examine(), given, confirmations, refuted or {})


def test_one_verdict_per_output_relation() -> None:
    bundle = row_parallel()
    for verdicts in ([], bundle.verdicts * 2):
        wrong = row_parallel()
        wrong.verdicts = verdicts
        with refuses(16, "the manifest must have one verdict per output relation"):
            conclude(wrong)
    for key in ("spec", "plan"):
        wrong = row_parallel()
        wrong.verdicts[0][key] = "z"
        with refuses(16, "verdict 0 of the manifest names another relation"):
            conclude(wrong)


def without_proof() -> Bundle:
    bundle = row_parallel()
    bundle.proof |= {"facts": [], "stages": []}
    bundle.files, bundle.verdicts[0]["verdict"] = {}, "UNKNOWN"
    return bundle


def test_why_an_output_is_not_proved() -> None:
    """The reason is the solvers' if there is a proof, else the manifest's, else that there is none."""
    assert conclude(row_parallel()).outputs[0].reason == ""
    bad = {"a": ALL, "b": ALL | {"0002": "sat"}}
    found = conclude(row_parallel(), bad).outputs[0]
    assert (found.verdict, found.reason) == (
        "UNKNOWN",
        "obligations/0002.smt2: a says unsat, b says sat (stage all-reduce)",
    )
    found = conclude(row_parallel(), {"a": ALL | {"0001": "unknown"}, "b": ALL}).outputs[0]
    assert found.reason.startswith("obligations/0001.smt2: a says unknown, b says unsat (stage row-parallel")
    bundle = without_proof()
    assert conclude(bundle).outputs[0].reason == "no proof in the bundle"
    bundle.verdicts[0]["reason"] = "too hard"
    found = conclude(bundle).outputs[0]
    assert (found.verdict, found.reason) == ("UNKNOWN", "too hard")


def test_a_claim_needs_its_facts() -> None:
    bundle = without_proof()
    for claim, number, reason in (
        ("PROVED", 16, "y is called PROVED and 1 of its 1 facts are goals of no stage"),
        ("REFUTED", 18, "y is called REFUTED and no witness shows it"),
    ):
        bundle.verdicts[0]["verdict"] = claim
        with refuses(number, reason):
            conclude(bundle)
    bundle = row_parallel()
    bundle.verdicts[0]["verdict"] = "UNKNOWN"
    assert conclude(bundle).outputs[0].verdict == "PROVED", "a proof counts, whatever the manifest says"


@pytest.mark.parametrize(
    "confirmations,solvers,verdict",
    [
        (0, 0, "UNKNOWN"),
        (0, 1, "PROVED"),
        (1, 1, "PROVED"),
        (1, 2, "PROVED"),
        (2, 1, "UNKNOWN"),
        (2, 2, "PROVED"),
        (3, 2, "UNKNOWN"),
    ],
)
def test_confirmations(confirmations: int, solvers: int, verdict: str) -> None:
    """Never without a solver, whatever the policy says."""
    answers = {f"s{i}": ALL for i in range(solvers)}
    assert conclude(row_parallel(), answers, confirmations).outputs[0].verdict == verdict


# The invariant ----------------------------------------------------------------------------------------------


def step(
    *,
    ranges: Any = None,
    before: Any = None,
    after: Any = None,
    spec_state: bool = True,
    plan_state: bool = True,
) -> tuple[str, ...]:
    """Why a step from `w` to `w` is no invariant; `before` and `after` change the relations."""

    def own(name: str, has: bool) -> Any:
        return program(
            [[name, "i64[4]"]], [op("%0", "negate", [name], "i64[4]")], [[name if has else "out", "%0"]]
        )

    whole = piece("c0", [4], [z(0)], [z(0)])
    plan = read_plan(
        dump(
            plan_of(
                [["r", 1]],
                own("w", spec_state),
                [{"name": "c0", "box": {"r": [0, 1]}, "program": own("v", plan_state)}],
                [relation("w", "v", before or whole)],
                [relation("w" if spec_state else "out", "v" if plan_state else "out", after or whole)],
                None,
                ranges,
            )
        )
    )
    proved = [kernel.Output(r.spec, r.plan, "PROVED", "") for r in plan.outputs]
    return kernel.invariant(plan, proved)


def test_the_step_is_an_invariant() -> None:
    turned = piece("c0", [4], [z(0)], [{"z0": -1, "": 3}])
    other = "leaves the step under another relation than it enters"
    assert step() == ()
    assert step(after=turned) == (f"specification state w {other}", f"plan state v {other}")
    gone = "is read but leaves no value; it is neither declared given nor constant"
    assert step(after=turned, spec_state=False) == (f"w {gone}", f"plan state v {other}")
    assert step(after=turned, plan_state=False) == (f"specification state w {other}", f"v {gone}")
    assert step(after=turned, plan_state=False, spec_state=False) == (f"w {gone}", f"v {gone}")
    assert step(before=turned, after=turned) == ()
    assert step(ranges={"w": [0, 9]}) == ("the declared range of the state w is not re-established",)
    assert step(ranges={"w": [0, 9]}, spec_state=False) == (
        *(f"w {gone}", f"plan state v {other}", "the declared range of the state w is not re-established"),
    )


def test_what_else_ends_the_invariant() -> None:
    plan = read_plan(dump(shards().plan))
    unproved = kernel.Output("y", "y", "UNKNOWN", "why")
    assert kernel.invariant(plan, [unproved]) == ("y is not proved",)
    empty = copy.deepcopy(shards().plan) | {"outputs": []}
    assert kernel.invariant(read_plan(dump(empty)), []) == ("nothing is claimed",)
    extra = json.loads(json.dumps(shards().plan))
    del extra["given"]
    for own in (extra["specification"], *(c["program"] for c in extra["classes"])):
        own["outputs"].append(["x", "x"])
    assert kernel.invariant(read_plan(dump(extra)), []) == (
        "specification state x leaves the step under another relation than it enters",
        "plan state x leaves the step under another relation than it enters",
    )
    extra["inputs"] = []
    assert kernel.invariant(read_plan(dump(extra)), []) == (), "nothing is said of x at either end"
    extra["outputs"] = [relation("x", "x", *(piece(f"c{r}", [3, 2], [z(0), z(1)], [{"dp": 3, "z0": 1}, z(1)])
                                             for r in range(2)))]  # fmt: skip
    assert kernel.invariant(read_plan(dump(extra)), []) == (), "nor of x on the way in"


def test_the_range_of_a_state_is_told_once() -> None:
    """Ranges are declared of the specification's inputs, whatever the plan's are called."""
    own = program([["w", "i64[4]"]], [], [["w", "w"]])
    whole = relation("w", "w", piece("c0", [4], [z(0)], [z(0)]))
    plan = plan_of([["r", 1]], own, [{"name": "c0", "box": {"r": [0, 1]}, "program": own}], [whole], [whole],
                   None, {"w": [0, 9]})  # fmt: skip
    assert kernel.invariant(read_plan(dump(plan)), []) == (
        "the declared range of the state w is not re-established",)  # fmt: skip
