"""The pipeline from plan to bundle: what is proved is checked, what is not proved is never called so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from certificates.bundle.bundle import NotABundle, OutputVerdict, read
from certificates.plan.plan import Plan
from certificates.plan.reading import load
from certificates.plan.writing import dump
from checker.solvers import obligations_digest
from orchestrator import emit as emission
from orchestrator.children import Checked, command, run_checker
from orchestrator.emit import emit
from orchestrator.evaluating.network import SPEED, Work
from orchestrator.progress import Progress
from orchestrator.proving.engine import Engine
from orchestrator.refuting import witnessing
from orchestrator.refuting.search import search
from orchestrator.solving.confirming import Answers, Confirming
from orchestrator.solving.cores import VERSIONS
from tests.corpus.mutate import mutants
from tests.orchestrator.deep_plans import deep

ROOT = Path(__file__).resolve().parents[2]
MLP = ROOT / "examples" / "mlp-handwritten.json.gz"
LARGE = ROOT / "examples" / "llama3-405b-2l-tp8-fsdp64.json.gz"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def mutant(plan: Plan, operator: str, where: str) -> Plan:
    return next(m for m in mutants(plan) if m.operator == operator and where in m.where).build()


def by_name(verdicts: Sequence[OutputVerdict]) -> dict[str, OutputVerdict]:
    return {v.plan: v for v in verdicts}


# --- proofs ------------------------------------------------------------------------------------------------


def test_hand_written_plans_are_proved_and_the_checker_agrees(any_plan: Plan, tmp_path: Path) -> None:
    done = emit(any_plan, tmp_path / "b", jobs=2)
    assert {v.verdict for v in done.verdicts} == {"PROVED"} and done.exit_code == 0
    assert done.verdict.startswith(f"PROVED: {len(any_plan.outputs)} of {len(any_plan.outputs)} outputs")
    checked = run_checker(tmp_path / "b")
    assert checked.exit_code == 0, checked.lines
    assert checked.lines[-1].startswith("VALID")
    assert not (tmp_path / "b.journal").exists()


def test_obligations_say_unsat_only_when_confirmed(mlp: Plan, tmp_path: Path) -> None:
    emit(mlp, tmp_path / "solved", jobs=2)
    emit(mlp, tmp_path / "open", solve=False)
    for name, status in (("solved", "unsat"), ("open", "unknown")):
        bundle = read(tmp_path / name)
        assert bundle.status == status
        assert bundle.obligations
        assert all(f"(set-info :status {status})" in text for text in bundle.obligations.values())


def test_the_same_plan_gives_the_same_bytes(mlp: Plan, tmp_path: Path) -> None:
    emit(mlp, tmp_path / "a", jobs=1)
    emit(mlp, tmp_path / "b", jobs=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_counts_and_phases_are_reported(mlp: Plan, tmp_path: Path) -> None:
    said: list[str] = []
    done = emit(mlp, tmp_path / "b", jobs=2, progress=Progress(said.append)).to_json()
    counts, seconds = done["counts"], done["seconds"]
    assert isinstance(counts, dict) and isinstance(seconds, dict)
    assert counts["proved"] == counts["outputs"] == 5 and counts["unknown"] == counts["refuted"] == 0
    assert counts["obligations"] == len(read(tmp_path / "b").obligations) > 0
    assert set(seconds) == {"relate", "prove", "assemble", "confirm", "write"}
    assert [line.split(":")[0] for line in said] == ["relate", "prove", "assemble", "confirm", "write"]
    assert isinstance(done["peak_mib"], float) and done["peak_mib"] > 10


def test_a_folder_with_other_things_is_refused_before_any_work(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").write_text("mine", encoding="ascii")
    monkeypatch.setattr(Engine, "relate", lambda _: pytest.fail("worked first"))
    with pytest.raises(NotABundle):
        emit(mlp, tmp_path)
    assert (tmp_path / "notes").read_text(encoding="ascii") == "mine"


# --- failing closed ----------------------------------------------------------------------------------------


def test_a_file_that_one_solver_does_not_refute_takes_its_outputs_down(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of w1 loses a step; what does not rest on it stands, and the checker agrees."""
    culprit: list[str] = []

    real = Confirming.answers

    def weak(self: Confirming, texts: Sequence[str], *rest: Any) -> list[Answers]:
        answers = real(self, texts, *rest)
        culprit[:] = culprit or [next(t for t in texts if "c0:%19 follows s:%17: multiply" in t)]
        bad = Answers("unsat", "unknown")
        return [bad if t in culprit else a for t, a in zip(texts, answers, strict=True)]

    monkeypatch.setattr(Confirming, "answers", weak)
    done = emit(mlp, tmp_path / "b", jobs=2, witness_seconds=0)
    verdicts = by_name(done.verdicts)
    assert {n for n, v in verdicts.items() if v.verdict == "UNKNOWN"} == {"params.w1", "grads.params.w1"}
    assert "z3 says unsat, cvc5 says unknown" in verdicts["params.w1"].reason
    assert {v.verdict for v in done.verdicts} == {"PROVED", "UNKNOWN"}
    assert done.exit_code == 3
    bundle = read(tmp_path / "b")
    assert bundle.status == "unsat" and culprit[0] not in bundle.obligations.values()
    checked = run_checker(tmp_path / "b")
    assert checked.exit_code == 3 and checked.lines[-1].startswith("UNKNOWN")
    assert {o.plan: o.verdict for o in checked.outputs} == {v.plan: v.verdict for v in done.verdicts}


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyError("lost"), "internal error KeyError"), (RecursionError(), "nested too deeply")],
)
@pytest.mark.parametrize("method", ["relate", "prove"])
def test_failures_inside_are_unknown(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, method: str
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(Engine, method, broken)
    done = emit(mlp, tmp_path / "b", witness_seconds=0)
    assert {v.verdict for v in done.verdicts} == {"UNKNOWN"} and done.exit_code == 3
    assert all(reason in v.reason for v in done.verdicts)
    assert run_checker(tmp_path / "b").exit_code == 3


def test_nothing_claimed_is_no_success(mlp: Plan, tmp_path: Path) -> None:
    assert emit(replace(mlp, outputs=()), tmp_path / "a").exit_code == 3
    assert emit(replace(mlp, outputs=()), tmp_path / "b", solve=False).exit_code == 3


# --- refutations -------------------------------------------------------------------------------------------


def test_a_broken_plan_is_refuted_and_the_op_named(mlp: Plan, tmp_path: Path) -> None:
    broken = mutant(mlp, "duplicate", "tanh")
    done = emit(broken, tmp_path / "b", jobs=2)
    refuted = [v for v in done.verdicts if v.verdict == "REFUTED"]
    assert len(refuted) == 1 and done.exit_code == 1
    assert "the witness gives" in refuted[0].reason
    assert "`tanh %" in refuted[0].reason and "conftest.py:" in refuted[0].reason
    assert not any(v.verdict == "PROVED" and v.plan == "loss" for v in done.verdicts)
    assert read(tmp_path / "b").witness is not None
    checked = run_checker(tmp_path / "b")
    assert checked.exit_code == 1 and checked.lines[-1].startswith("REFUTED")


def test_outputs_before_the_mistake_stay_proved(mlp: Plan, tmp_path: Path) -> None:
    broken = mutant(mlp, "drop", "subtract %31")
    done = emit(broken, tmp_path / "b", jobs=2)
    words = {v.plan: v.verdict for v in done.verdicts}
    assert "REFUTED" in words.values() and "PROVED" in words.values()
    assert {o.plan: o.verdict for o in run_checker(tmp_path / "b").outputs} == words


def test_a_witness_that_the_checker_does_not_replay_refutes_nothing(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witnessing, "run_checker", lambda *_: Checked(3, ("UNKNOWN",), (), {}))
    done = emit(mutant(mlp, "drop", "subtract %31"), tmp_path / "b", jobs=2, witness_seconds=5)
    assert {v.verdict for v in done.verdicts} == {"UNKNOWN", "PROVED"} and done.exit_code == 3
    assert not (tmp_path / "b" / "witness.json").exists()


def test_the_search_for_a_witness_ends_after_so_many_steps() -> None:
    """512 ranks have more tensors than a minute, or the memory, is enough for."""
    work = Work()
    assert search(load(LARGE), budget=0.5, work=work) is None
    assert SPEED / 2 < work.steps < 1.1 * SPEED


class Clocks:
    """A machine on which hours pass between two looks at a clock."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_slow_and_fast_machines_write_the_same_bytes(
    mlp: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Witness, cause and suggestion of a refuted plan included: what is given up is counted in steps."""
    broken, written = mutant(mlp, "duplicate", "tanh"), []
    for step, jobs in ((1e-9, 2), (3600.0, 1)):
        clock = Clocks(step)
        with monkeypatch.context() as patch:
            for name in ("monotonic", "time", "perf_counter", "process_time"):
                patch.setattr(time, name, clock)
            done = emit(broken, tmp_path / "b", jobs=jobs, witness_seconds=3)
        assert done.exit_code == 1 and clock.now >= step, "a clock is read, for progress"
        files = {p.relative_to(tmp_path / "b"): p.read_bytes() for p in (tmp_path / "b").rglob("*.*")}
        written.append((done.cause, files))
    assert written[0] == written[1] and written[0][0] is not None


# --- without solvers ---------------------------------------------------------------------------------------

BLOCKED = """
import sys
sys.path.insert(0, {root!r})
sys.modules["z3"] = sys.modules["cvc5"] = None
from pathlib import Path
from certificates.plan.reading import load
from orchestrator.emit import emit
done = emit(load({plan!r}), Path({out!r}), solve=False, witness_seconds={seconds})
print(done.exit_code, done.verdict)
"""


def without_solvers(plan: Plan, folder: Path, seconds: float = 0) -> str:
    """Exit code and verdict of ``--no-solve`` where neither solver can be imported."""
    dump(plan, folder / "plan.json")
    script = BLOCKED.format(
        root=str(ROOT), plan=str(folder / "plan.json"), out=str(folder / "b"), seconds=seconds
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_obligations_written_without_solvers_are_solved_elsewhere(any_plan: Plan, tmp_path: Path) -> None:
    """Guesses that are normally tried on a solver are right here too: every file is unsat."""
    assert without_solvers(any_plan, tmp_path).startswith("0 UNSOLVED")
    bundle = read(tmp_path / "b")
    assert {v.verdict for v in bundle.verdicts} == {"UNKNOWN"}
    with Confirming(emission.Journal(), VERSIONS, 2) as confirming:
        answers = confirming.answers(list(bundle.obligations.values()))
    about, options = obligations_digest({n: t.encode() for n, t in bundle.obligations.items()}), []
    for solver in ("z3", "cvc5"):
        lines = [f"{n} {getattr(a, solver)}\n" for n, a in zip(bundle.obligations, answers, strict=True)]
        head = f"# solver {solver}\n# version {VERSIONS}\n# obligations {about}\n"
        (tmp_path / solver).write_text(head + "".join(lines), encoding="ascii")
        options += ["--answers", str(tmp_path / solver)]
    checked = run_checker(tmp_path / "b", *options)
    assert checked.exit_code == 0, checked.lines


def test_without_solvers_a_broken_plan_is_not_called_complete(mlp: Plan, tmp_path: Path) -> None:
    broken = mutant(mlp, "duplicate", "tanh")
    assert without_solvers(broken, tmp_path).startswith("3 UNKNOWN")
    assert without_solvers(broken, tmp_path, seconds=20).startswith("1 REFUTED")


# --- killed runs -------------------------------------------------------------------------------------------


def test_a_killed_run_continues(tmp_path: Path) -> None:
    """SIGKILL after some answers: the next run asks for the others only, and the bundle is the same."""
    plan = load(MLP)
    whole = emit(plan, tmp_path / "whole", jobs=2)
    assert whole.resumed == 0
    journal = tmp_path / "b.journal"
    arguments = [str(MLP), "--out", str(tmp_path / "b")]
    code = f"from orchestrator.cli import emit_main; emit_main({arguments!r})"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b"\n") <= whole.solver_answers // 4:
        assert child.poll() is None and time.monotonic() < deadline, "finished before it was killed"
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "b").exists()
    kept = journal.read_bytes().count(b"\n") - 1  # beside the header
    again = emit(plan, tmp_path / "b", jobs=2)
    assert again.resumed == kept >= whole.solver_answers // 4
    assert again.solver_answers == whole.solver_answers - kept
    assert contents(tmp_path / "b") == contents(tmp_path / "whole")
    assert not journal.exists()


def test_kept_answers_are_used_after_an_edit_and_change_nothing(tmp_path: Path) -> None:
    """Only what an edit touches is solved again; the bundle is the one that is made from scratch."""
    plan, answers = deep(4), tmp_path / "answers"
    first = emit(plan, tmp_path / "first", answers=answers)
    assert first.resumed == 0 and first.solver_answers > 10
    (cls,) = plan.classes
    op = [op for op in cls.program.ops if op.name == "multiply"][-1]
    edited = replace(op, ins=op.ins[::-1])
    ops = tuple(edited if o is op else o for o in cls.program.ops)
    changed = replace(plan, classes=(replace(cls, program=replace(cls.program, ops=ops)),))
    whole = emit(changed, tmp_path / "whole")
    again = emit(changed, tmp_path / "again", answers=answers)
    assert 0 < again.solver_answers <= 3 < whole.solver_answers
    assert again.exit_code == whole.exit_code == 0
    assert contents(again.bundle) == contents(whole.bundle)
    assert answers.exists() and not (tmp_path / "again.journal").exists()


def test_a_bundle_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """Whoever emits an archived plan again gets its bundle byte for byte: hash seed, user, home, time zone,
    language, umask, folder, number of processes and the name of the file have no part in it."""
    dump(deep(2), tmp_path / "plan.json")
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "far/away/renamed.json").write_bytes((tmp_path / "plan.json").read_bytes())
    places = {
        "one.tar": (tmp_path, "plan.json", "1", 0o077, {"TZ": "Asia/Tokyo", "USER": "a", "LC_ALL": "C"}),
        "two.tar": (tmp_path / "far/away", "renamed.json", "2", 0o002, {"HOME": str(tmp_path), "USER": "b"}),
    }
    found = []
    for name, (folder, plan, seed, mask, variables) in places.items():
        words = command("orchestrator.cli", "emit_main", plan, "--out", name, "--jobs", seed)
        env = os.environ | {"PYTHONHASHSEED": seed} | variables
        subprocess.run(words, env=env, cwd=folder, umask=mask, check=True, capture_output=True)
        found.append((folder / name).read_bytes())
    assert found[0] == found[1]
