"""The benchmark: it measures, README has its table, and a table that is far off is noticed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trainverify as tv
from bench import compare, long_sums, measure, routings, unexplained
from certificates.plan.plan import Plan
from certificates.plan.writing import dump
from orchestrator.relating import tries
from tests.packed_runs import Run

ROOT = Path(__file__).resolve().parents[1]


def test_a_small_plan_is_measured(mlp: Plan, tmp_path: Path) -> None:
    dump(mlp, tmp_path / "plan.json.gz")
    row = dict(zip(measure.COLUMNS, measure.row_of(tmp_path / "plan.json.gz"), strict=True))
    assert row["plan"] == "mlp-tp2-dp2" and row["proved"] == "5 of 5" and row["ranks"] == "4"
    assert int(row["ops"]) == len(mlp.specification.ops) + len(mlp.classes[0].program.ops)
    assert int(row["obligations"]) <= int(row["stages"]) and float(row["emit s"]) > 0
    assert 20 < float(row["check MiB"]) < 4000


MAIN = {
    "mlp-handwritten", "llama-uneven-tp2-fsdp2", "llama3-8b-2l-tp2-fsdp2", "llama3-405b-2l-tp8-fsdp64",
}  # fmt: skip


def test_readme_tells_of_the_main_plans_and_of_shipped_ones_only() -> None:
    told = measure.published(measure.README.read_text("utf-8"))
    shipped = {p.name.removesuffix(".json.gz") for p in (ROOT / "examples").glob("*.json.gz")}
    assert MAIN <= set(told) <= shipped
    assert all(len(row) == len(measure.COLUMNS) for row in told.values())


def test_a_table_that_is_off_is_noticed() -> None:
    row = ("x", "3 of 3", "4", "10", "10", "10", "7", "100", "10.0", "100", "5.0", "100")
    assert measure.differences(row, row) == []
    slower = (*row[:8], "20.5", *row[9:])
    assert measure.differences(slower, row) == ["x: emit s is 20.5, README.md says 10.0"]
    assert measure.differences(row, slower) == ["x: emit s is 10.0, README.md says 20.5"]
    worse = (row[0], "2 of 3", *row[2:])
    assert measure.differences(worse, row) == ["x: 2 of 3 outputs are proved, README.md says 3 of 3"]
    assert measure.differences(row, None) == ["x: not in README.md"]


def test_rows_of_plans_that_were_not_measured_stay() -> None:
    told = {"a": ("a", "1"), "b": ("b", "2")}
    assert measure.merged(told, [("b", "3"), ("c", "4")]) == [("a", "1"), ("b", "3"), ("c", "4")]


def test_the_table_reads_back() -> None:
    row = ("x", *("1",) * (len(measure.COLUMNS) - 1))
    assert measure.published(f"{measure.BEGIN}{measure.table([row])}{measure.END}") == {"x": row}


def test_two_revisions_are_compared_by_the_bytes_of_their_proofs_not_of_their_reports(tmp_path: Path) -> None:
    for name, proof in (("old", "a"), ("new", "b")):
        (tmp_path / name / "obligations").mkdir(parents=True)
        (tmp_path / name / "proof.json").write_text(proof)
        (tmp_path / name / "obligations" / "0001.smt2").write_text("same")
        (tmp_path / name / "report.txt").write_text(name)
    old = compare.Side(tmp_path, {"emit": 2.0, "check": 1.0}, compare.digests(tmp_path / "old"))
    new = compare.Side(tmp_path, {"emit": 3.0, "check": 1.0}, compare.digests(tmp_path / "new"))
    assert compare.row("x", old, new) == (
        "x: emit 2.0 -> 3.0 s (1.50), check 1.0 -> 1.0 s (1.00); 1 of 2 files differ: proof.json"
    )
    assert compare.row("x", old, old).endswith("; the same bytes")


def bundle(tmp_path: Path, text: str) -> Path:
    (tmp_path / "obligations").mkdir()
    (tmp_path / "obligations" / "0001.smt2").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("(set-logic QF_UFLRA)\n(declare-fun x () Real)\n(assert (not (= x x)))\n(check-sat)\n(exit)\n", 0),
        ("(set-logic QF_UFLRA)\n(declare-fun x () Real)\n(assert (= x 1.0))\n(check-sat)\n(exit)\n", 1),
        ("(set-logic QF_UFLRA)\n(assert (= x 1.0))\n(check-sat)\n(exit)\n", 1),
    ],
    ids=["unsat", "sat", "malformed"],
)
def test_every_solver_is_asked(tmp_path: Path, text: str, code: int) -> None:
    words = [sys.executable, str(ROOT / "bench" / "solve_all.py"), str(bundle(tmp_path, text))]
    done = subprocess.run([*words, "--limit", "5"], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:3]] == ["cvc5", "yices-smt2", "z3"]


def test_the_table_of_solvers_counts_equal_files_once(tmp_path: Path) -> None:
    """Who is refuted by whom, bundle by bundle; a solver that fails has its own number."""
    text = (
        "(set-logic QF_LRA)\n(declare-fun x () Real)\n(assert (= x 1.0))\n(assert (= x 2.0))\n(check-sat)\n"
    )
    for name, files in (("a", ["; one\n" + text, text.replace("2.0", "3.0")]), ("b", ["; two\n" + text])):
        for i, said in enumerate(files, 1):
            place = tmp_path / name / "data/obligations" / f"{i:04}.smt2"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(said)
    half = tmp_path / "half"
    told = 'case "$1" in --version) exec echo Half 7.1;; esac'
    half.write_text(f'#!/bin/sh\n{told}\ngrep -q 3.0 "$1" && echo unsat || echo unknown\n')
    half.chmod(0o755)
    document = tmp_path / "d.md"
    document.write_text("before\n<!-- solved -->\nold\n<!-- end -->\nafter\n")
    words = [sys.executable, str(ROOT / "bench/solve_all.py"), str(tmp_path / "a"), str(tmp_path / "b")]
    options = ["--solver", "packages", "--solver", str(half), "--limit", "5", "--write", str(document)]
    done = subprocess.run([*words, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "a/0001.smt2: 'unknown'" in done.stdout
    lines = document.read_text().split("\n")
    assert lines[:2] == ["before", "<!-- solved -->"] and lines[-3:] == ["<!-- end -->", "after", ""]
    assert re.fullmatch(
        r"\| bundle \| files \| z3 [\d.]+ \| yices-smt2 [\d.]+ \| cvc5 [\d.]+ \| half 7.1 \|", lines[2]
    )
    assert lines[4:7] == ["| a | 2 | 2 | 2 | 2 | 1 |", "| b | 1 | 1 | 1 | 1 | 0 |",
                          "| all, each text once | 2 | 2 | 2 | 2 | 1 |"]  # fmt: skip
    assert lines[9] == "Logics of the 2 texts: 2 of `QF_LRA`."


def test_a_kept_answer_is_asked_once_and_only_unsat_is_kept(tmp_path: Path) -> None:
    """What a solver did not refute, what changed, and another version of a solver are asked again."""
    for i, value in enumerate(("1.0", "2.0"), 1):
        place = tmp_path / "a/data/obligations" / f"{i:04}.smt2"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"; x\n(set-logic QF_LRA)\n(assert (= {value} 1.0))\n(check-sat)\n")
    asked, solver = tmp_path / "asked", tmp_path / "solver"

    def run(version: str) -> list[str]:
        asked.write_text("")
        told = f'case "$1" in --version) exec echo Mine {version};; esac\nbasename "$1" >> {asked}'
        solver.write_text(f"#!/bin/sh\n{told}\ngrep -q 'assert (= 2.0' \"$1\" && echo unsat || echo sat\n")
        solver.chmod(0o755)
        words = [sys.executable, str(ROOT / "bench/solve_all.py"), str(tmp_path / "a"), "--limit", "5"]
        words += ["--jobs", "1", "--solver", str(solver), "--answers", str(tmp_path / "kept")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "1 of 2 unsat" in done.stdout, done.stdout + done.stderr
        return asked.read_text().split()

    assert run("1.0") == ["0001.smt2", "0002.smt2"]
    assert run("1.0") == ["0001.smt2"]
    assert run("1.1") == ["0001.smt2", "0002.smt2"]


@pytest.mark.slow
def test_every_file_of_the_8b_bundle_is_solved_by_every_solver(tmp_path: Path) -> None:
    from trainverify import emit, load

    emit(load(ROOT / "examples" / "llama3-8b-2l-tp2-fsdp2.json.gz"), tmp_path / "b")
    words = [sys.executable, str(ROOT / "bench" / "solve_all.py"), str(tmp_path / "b")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_row_of_the_diagnosis_counts_recorded_lines_only_and_a_cause_of_a_right_plan_is_an_alarm(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from bench import diagnosis

    said = {"file": "a/x.py", "line": 7, "what": "is 2 x it", "suggestion": "remove it at a/x.py:7"}
    said["or"] = [{"suggestion": "remove it at a/x.py:9"}]
    causes = iter([None, said, said, said, said])
    monkeypatch.setattr(diagnosis, "cause", lambda _plan: next(causes))
    title, other = diagnosis.TITLES[diagnosis.PUBLIC], diagnosis.TITLES["1"]
    rows = [
        diagnosis.right(title, "r", mlp), diagnosis.right(title, "s", mlp),
        diagnosis.wrong(title, "a", mlp, frozenset([("a/x.py", 7)])),
        diagnosis.wrong(title, "b", mlp, frozenset()),
        diagnosis.wrong(title, "c", mlp, frozenset([("a/x.py", 9)])),
    ]  # fmt: skip
    assert [r.split(" | ")[2] for r in rows] == ["right", "FALSE ALARM", "own", "another", "named too"]
    page = tmp_path / "page.md"
    kept = f"| {other} | kept | none | | none |"
    before = f"text\n{diagnosis.BEGIN}\n{kept}\n| {title} | gone | own | x | y |\n{diagnosis.END}\n"
    page.write_text(before, "utf-8")
    monkeypatch.setattr(diagnosis, "PAGE", page)
    diagnosis.write(rows)
    text = page.read_text("utf-8")
    assert kept in text and "gone" not in text and text.startswith("text\n")
    assert "4 mistakes: own line 1, named beside another 1, another 1, none 1; proved suggestion 3; " in text
    assert "false alarms 1 of 2 right plans" in text


def test_routings_of_every_kind_are_tried_and_agree() -> None:
    told = routings.batch(range(60))
    assert {kind for kind, _ in told} == routings.KINDS.keys() and [said for _, said in told if said] == []


def test_rows_that_come_back_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_sorted", lambda _, keys: np.arange(len(keys)))
    told = [said for _, said in routings.batch(range(60))]
    assert any("any: as it runs" in said for said in told) and not any("in slots" in said for said in told)


@pytest.mark.parametrize("kind", unexplained.KINDS)
def test_chains_that_have_nothing_to_do_with_each_other_are_unknown(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short ones, with as little to try as makes no difference between them."""
    monkeypatch.setattr(tries.Tries, "left", property(lambda self: self.in_vain < 2_000))
    verdict, _ = unexplained.measured(unexplained.unexplained(kind, 9))
    assert verdict == "UNKNOWN"


@pytest.mark.parametrize("kind", long_sums.KINDS)
@pytest.mark.parametrize(("missing", "verdict"), [(None, "PROVED"), (3, "UNKNOWN")])
def test_a_norm_over_many_tensors_is_found_as_a_whole(kind: str, missing: int | None, verdict: str) -> None:
    """More summands than specification ops that a tensor is compared with; without one it is wrong."""
    said, _ = unexplained.measured(long_sums.norm(kind, 70, missing=missing))
    assert said == verdict


@pytest.mark.slow
def test_a_deep_norm_is_checked_too(tmp_path: Path) -> None:
    """Python's own limit of nested calls is 1,000: the checker gave up where the emitter had not."""
    tv.emit(long_sums.norm("chain", 280), tmp_path / "b")
    verdict = tv.check(tmp_path / "b")
    assert verdict.exit_code == 0, verdict
