"""What an emission keeps: less work after an edit, and never another bundle."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from certificates.bundle.bundle import REPORTS
from certificates.errors import FormatError
from certificates.plan.checking import check_plan
from certificates.plan.functions import body_plan
from certificates.plan.plan import Plan, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.writing import dump
from orchestrator.early import Early
from orchestrator.emission import Emission
from orchestrator.emit import emit
from orchestrator.errors import Unaccepted
from orchestrator.outlining.outline import outline
from orchestrator.proving import reuse
from orchestrator.proving.engine import Engine
from orchestrator.solving.journal import Journal
from tests.orchestrator.deep_plans import clipped, deep, framed, rooted
from trainverify import Kind, check

PLANS = {"blocks": lambda: outline(deep(4)), "clipped": lambda: outline(clipped(6))}
Change = Callable[[Op], Op]
Around = tuple[tuple[RankClass, ...], tuple[RankClass, ...]]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def swapped(op: Op) -> Op:
    return replace(op, ins=op.ins[::-1])


def added(op: Op) -> Op:
    """What a multiplication must not become."""
    return replace(op, name="add")


def programs(plan: Plan) -> Iterator[tuple[str, Program, Callable[[Program], Plan]]]:
    """Every program and body, and the plan with another in its place."""
    yield "s", plan.specification, lambda p: replace(plan, specification=p)
    for k, cls in enumerate(plan.classes):
        before, after = plan.classes[:k], plan.classes[k + 1 :]

        def with_class(p: Program, cls: RankClass = cls, around: Around = (before, after)) -> Plan:
            return replace(plan, classes=(*around[0], replace(cls, program=p), *around[1]))

        yield cls.name, cls.program, with_class
    for f, body in plan.functions.items():

        def with_body(new: object, f: str = f) -> Plan:
            return replace(plan, functions=plan.functions | {f: new})

        yield f"{f} of s", body.specification, lambda p, b=body, w=with_body: w(replace(b, specification=p))
        for c, program in body.classes.items():
            yield (
                f"{f} of {c}", program,
                lambda p, b=body, c=c, w=with_body: w(replace(b, classes=b.classes | {c: p})),
            )  # fmt: skip


def edits(plan: Plan, change: Change) -> Iterator[tuple[str, Plan]]:
    """Each multiplication of two different values changed, one at a time."""
    for owner, program, rebuilt in programs(plan):
        for i, op in enumerate(program.ops):
            if op.name == "multiply" and len(set(op.ins)) == 2:
                ops = (*program.ops[:i], change(op), *program.ops[i + 1 :])
                edited = rebuilt(replace(program, ops=ops))
                check_plan(edited)
                yield f"{op.out} in {owner}", edited


def in_function(plan: Plan, change: Change = swapped) -> Plan:
    return [p for where, p in edits(plan, change) if " of c0" in where][-1]


def in_main(plan: Plan) -> Plan:
    return next(p for where, p in edits(plan, swapped) if where.endswith(" in c0"))


@pytest.fixture(scope="module", params=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param]()


@pytest.fixture(scope="module")
def before(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of kept answers after the plan's first emission."""
    folder = tmp_path_factory.mktemp("before")
    done = emit(plan, folder / "b", answers=folder / "answers")
    assert done.exit_code == 0 and done.solver_answers > 10
    return folder


@pytest.fixture
def answers(before: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(before / "answers", tmp_path / "answers"))


@pytest.fixture
def related(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the programs and functions that are related from now on."""
    seen, real = list[str](), Engine.relate

    def relate(engine: Engine) -> None:
        seen.append(engine.plan.name)
        real(engine)

    monkeypatch.setattr(Engine, "relate", relate)
    return seen


def quick(plan: Plan, out: Path, answers: Path | None = None) -> Emission:
    return emit(plan, out, witness_seconds=0, answers=answers, force=True)


def test_the_same_plan_is_not_related_again(
    plan: Plan, before: Path, answers: Path, related: list[str], tmp_path: Path
) -> None:
    done = emit(plan, tmp_path / "b", answers=answers)
    assert related == [] and done.solver_answers == 0
    assert done.exit_code == 0 and (done.facts, done.stages) > (0, 0)
    assert contents(done.bundle) == contents(before / "b")
    assert answers.read_bytes() == (before / "answers").read_bytes()


NAMES = """
import sys
from pathlib import Path
from certificates.plan.reading import load
from orchestrator.solving.journal import Journal
from orchestrator.proving.reuse import Kept
kept = Kept(Journal(), load(Path(sys.argv[1])), "")
print(kept._main, kept._function)
"""


def test_names_of_what_is_kept_are_the_same_in_every_process(tmp_path: Path) -> None:
    """The order of a set of names, say, is another one in each."""
    path = tmp_path / "plan.json"
    dump(outline(clipped(4), lambda _: True), path)
    found = {
        subprocess.run(
            [sys.executable, "-c", NAMES, str(path)], capture_output=True, text=True, check=True,
            cwd=Path(reuse.__file__).parents[2], env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1 and "f1" in found.pop()


def test_an_edited_function_alone_is_related_again(
    plan: Plan, answers: Path, related: list[str], tmp_path: Path
) -> None:
    edited = in_function(plan)
    done = emit(edited, tmp_path / "b", answers=answers)
    assert set(related) == {"f0"}, "neither the main program nor another function"
    assert done.exit_code == 0
    assert contents(done.bundle) == contents(emit(edited, tmp_path / "whole").bundle)


def test_functions_are_not_related_again_for_an_edit_outside(related: list[str], tmp_path: Path) -> None:
    plan = PLANS["clipped"]()
    emit(plan, tmp_path / "first", answers=tmp_path / "kept")
    related.clear()
    edited = in_main(plan)
    done = emit(edited, tmp_path / "b", answers=tmp_path / "kept")
    assert related == [edited.name] and done.exit_code == 0
    assert contents(done.bundle) == contents(emit(edited, tmp_path / "whole").bundle)


@pytest.mark.parametrize("sections", [False, True])
def test_a_function_whose_results_may_be_negative_now_is_not_behind_the_same_root(
    sections: bool, tmp_path: Path
) -> None:
    """The main program, or another function, squares the root of what was never negative."""
    plan = outline(rooted(3), lambda _: sections)
    assert len(plan.functions) == 1 + sections
    assert emit(plan, tmp_path / "first", answers=tmp_path / "kept").exit_code == 0

    def signed(program: Program) -> Program:
        """The same layer without its last exponential."""
        names = [op.name for op in program.ops]
        assert names[-1] == "exponential"
        return replace(program, ops=(*program.ops[:-1], replace(program.ops[-1], name="sine")))

    f0 = plan.functions["f0"]
    classes = {c: signed(p) for c, p in f0.classes.items()}
    changed = replace(f0, specification=signed(f0.specification), classes=classes)
    other = replace(plan, functions={**plan.functions, "f0": changed})
    done = quick(other, tmp_path / "b", tmp_path / "kept")
    assert done.exit_code == 3
    assert contents(done.bundle) == contents(quick(other, tmp_path / "whole").bundle)


def test_a_wider_range_of_an_input_is_not_behind_the_same_embedding(tmp_path: Path) -> None:
    """The rows of an embedding are known to be there by a range that the whole plan declares."""
    plan = outline(framed(3), lambda _: True)
    low, high = plan.ranges["batch.tokens"]
    assert emit(plan, tmp_path / "first", answers=tmp_path / "kept").exit_code == 0
    wider = replace(plan, ranges={"batch.tokens": (low, high + 1)})
    done = quick(wider, tmp_path / "b", tmp_path / "kept")
    assert done.exit_code == 3
    assert contents(done.bundle) == contents(quick(wider, tmp_path / "whole").bundle)


def test_a_mistake_in_a_function_is_found_with_all_kept(plan: Plan, answers: Path, tmp_path: Path) -> None:
    """The main program's proof stood before; a function that says something else must not inherit it."""
    wrong = in_function(plan, added)
    done = quick(wrong, tmp_path / "b", answers)
    assert done.exit_code == 3 and "PROVED" in {
        v.verdict for v in quick(plan, tmp_path / "right", answers).verdicts
    }
    assert contents(done.bundle) == contents(quick(wrong, tmp_path / "whole").bundle)


@pytest.mark.parametrize("change", [swapped, added])
@pytest.mark.parametrize("step", [pytest.param(14), pytest.param(8, marks=pytest.mark.slow)])
def test_a_chain_of_edits_gives_the_bundles_that_are_made_from_scratch(
    plan: Plan, answers: Path, change: Change, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each edit is emitted with what the one before left. What the checker's reports say follows from the
    other files, which are compared here; a child that writes them would take a third of the time."""
    monkeypatch.setattr(Early, "begin", lambda _early, _bundle: None)
    monkeypatch.setattr(Early, "reports", lambda *_: dict.fromkeys(REPORTS, b""))
    chosen = list(edits(plan, change))[::-step]
    assert len(chosen) >= 2
    for where, edited in chosen:
        again = quick(edited, tmp_path / "again", answers)
        whole = quick(edited, tmp_path / "whole")
        assert again.exit_code == whole.exit_code == (0 if change is swapped else 3), where
        assert again.to_json()["outputs"] == whole.to_json()["outputs"], where
        assert contents(again.bundle) == contents(whole.bundle), where


def test_other_code_or_other_solvers_use_nothing(
    plan: Plan, answers: Path, related: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "code", lambda: "of tomorrow")
    assert emit(plan, tmp_path / "b", answers=answers).exit_code == 0
    assert set(related) == {plan.name, *plan.functions}
    again = reuse.Kept(Journal(answers), plan, "another solver")
    assert again.lemma("f0", []) is None


def test_code_of_every_folder_counts(tmp_path: Path) -> None:
    """A proof made before an edit of a module in a subfolder is as stale as any other."""
    deep = tmp_path / "orchestrator" / "relating" / "matching.py"
    deep.parent.mkdir(parents=True)
    digests = []
    for text in ("x = 1\n", "x = 2\n"):
        deep.write_text(text)
        reuse.code.cache_clear()
        digests.append(reuse.code(tmp_path))
    deep.rename(deep.parents[1] / deep.name)
    reuse.code.cache_clear()
    digests.append(reuse.code(tmp_path))
    reuse.code.cache_clear()
    assert len(set(digests)) == 3


def test_the_file_holds_the_last_proof_only(plan: Plan, answers: Path, tmp_path: Path) -> None:
    parts = answers.read_bytes().count(b'["part", ')
    size = answers.stat().st_size
    for _, edited in itertools.islice(edits(plan, swapped), 3):
        emit(edited, tmp_path / "b", answers=answers, force=True)
    assert answers.read_bytes().count(b'["part", ') == parts
    assert answers.stat().st_size < 1.2 * size


def test_a_kept_part_that_was_changed_is_caught_by_the_checker(
    plan: Plan, answers: Path, tmp_path: Path
) -> None:
    lines = answers.read_bytes().splitlines()
    place = next(i for i, line in enumerate(lines) if b'"lemmas": ' in line)
    _, name, data = json.loads(lines[place])
    stages = json.loads(data["part"]["section"]["stages"])
    dropped = next(s for s in stages if s["kind"] == "call")
    stages.remove(dropped)
    data["part"]["section"]["stages"] = json.dumps(stages, sort_keys=True, separators=(",", ":"))
    lines[place] = json.dumps(["part", name, data]).encode()
    answers.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(Unaccepted, match="fact"):
        emit(plan, tmp_path / "b", answers=answers)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("damage", [b"[1", b'{"lemmas": 3, "part": {}}]', b'{"lemmas": [{}], "part": {}}]'])
def test_a_damaged_part_is_not_used(plan: Plan, answers: Path, damage: bytes, tmp_path: Path) -> None:
    lines = answers.read_bytes().splitlines()
    start = len(b'["part", "') + 64 + len(b'", ')
    lines = [line[:start] + damage if line.startswith(b'["part"') else line for line in lines]
    answers.write_bytes(b"\n".join(lines) + b"\n")
    try:
        done = emit(plan, tmp_path / "b", answers=answers)
    except FormatError as error:
        assert "kept" in str(error)
    else:
        assert done.exit_code == 0 and done.solver_answers == 0
        assert check(done.bundle).kind is Kind.PROVED


def test_a_solver_that_refuses_a_kept_proof_takes_it_down(plan: Plan, answers: Path, tmp_path: Path) -> None:
    """Answers say that cvc5 does not refute one file: the proof of last time is no excuse."""
    lines = [json.loads(line) for line in answers.read_bytes().splitlines()]
    confirmed = [line for line in lines if line[1] == ["unsat", "unsat"]]
    confirmed[0][1] = ["unsat", "unknown"]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = quick(plan, tmp_path / "b", answers)
    assert done.exit_code == 3
    assert any("cvc5 says unknown" in v.reason for v in done.verdicts)


def test_a_function_is_keyed_by_the_mesh_it_runs_on(plan: Plan) -> None:
    """The same body on other ranks is another lemma."""
    other = replace(
        plan, mesh=replace(plan.mesh, axes={a: n for a, n in plan.mesh.axes.items()} | {"pod": 1})
    )
    keys = [reuse.Kept(Journal(), p, "")._lemma("f0", []) for p in (plan, other)]
    assert len(set(keys)) == 2
    assert body_plan(plan, "f0").functions == {}
