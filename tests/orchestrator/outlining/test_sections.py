"""What stands between repeated layers in functions of its own: what a user of a deep plan relies on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from certificates.plan.calls import calls
from certificates.plan.functions import body_plan, inline
from certificates.plan.ops import CALL
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from orchestrator import emit as emission
from orchestrator.emit import emit, provable
from orchestrator.errors import SolverMissing
from orchestrator.outlining.outline import expressions, outline
from tests.orchestrator.deep_plans import VOCABULARY, clipped, deep, framed
from trainverify import Kind, check


def always(_plan: Plan) -> bool:
    return True


@pytest.fixture(scope="module")
def whole() -> Plan:
    """Blocks and updates are f0 and f1; the embedding is f2, the loss f3."""
    return outline(framed(4), always)


def ops(program: Program) -> list[str]:
    return [op.name for op in program.ops]


def test_embedding_and_loss_are_functions_called_once(whole: Plan) -> None:
    for program in (whole.specification, *(c.program for c in whole.classes)):
        assert set(ops(program)) == {CALL}
        sites = [c.site for c in calls(program)]
        assert sites[0] == ("f2", 0) and sites[5] == ("f3", 0)
        assert sorted(sites[1:5] + sites[6:]) == [(f, k) for f in ("f0", "f1") for k in range(4)]
    assert "gather" in ops(whole.functions["f2"].specification)
    assert "reduce" in ops(whole.functions["f3"].specification)


def test_they_compute_the_same(whole: Plan) -> None:
    known = dict[object, int]()
    assert expressions(inline(whole), known) == expressions(framed(4), known)
    assert loads(dumps(whole)) == whole and dumps(outline(inline(whole), always)) == dumps(whole)


@pytest.mark.parametrize("late", [True, False])
def test_a_sum_over_ranks_stands_with_its_summands(late: bool) -> None:
    """Nothing could be said of a rank's own part of the loss where it is summed at the end of the step."""
    plan = outline(framed(4, late), always)
    assert "all_reduce" in ops(plan.functions["f3"].classes["c0"])
    assert provable(plan)


def test_masks_are_computed_where_they_are_needed(whole: Plan) -> None:
    """Tokens cross, not positions and masks that are a rank's own."""
    assert "batch.tokens" in next(c.ins for c in calls(whole.specification) if c.function == "f3")
    for function in ("f2", "f3"):
        for program in whole.functions[function].classes.values():
            assert all(program.type_of(v).sort == "Real" for v in program.outputs.values())


def test_ranges_of_inputs_reach_the_function(whole: Plan, tmp_path: Path) -> None:
    """Without the range of the tokens no rank of the embedding is known to have the row."""
    ranges = body_plan(whole, "f2").ranges
    assert list(ranges.values()) == [(0, VOCABULARY)] and body_plan(whole, "f0").ranges == {}
    assert emit(whole, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED
    wider = replace(whole, ranges={"batch.tokens": (0, VOCABULARY + 1)})
    assert emit(wider, tmp_path / "wider", witness_seconds=0).exit_code == 3


def test_a_function_has_no_range_for_what_is_computed(whole: Plan) -> None:
    """A call with another operand than an input with a range takes the range from the function."""
    assert body_plan(replace(whole, ranges={}), "f2").ranges == {}
    plan = outline(deep(4), always)
    assert all(body_plan(plan, f).ranges == {} for f in plan.functions)


def test_a_clipped_update_has_a_proof_in_sections(tmp_path: Path) -> None:
    """The norms of all layers, squared in their functions, are rooted and squared again in another one."""
    plan = outline(clipped(4), provable)
    assert set(plan.functions) == {"f0", "f1"}
    assert emit(plan, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED


@pytest.mark.parametrize("wrong", ["half", "sum", "layer"])
def test_a_wrong_norm_in_a_section_is_refuted(wrong: str, tmp_path: Path) -> None:
    assert emit(outline(clipped(4, wrong), always), tmp_path / "b").exit_code == 1
    assert check(tmp_path / "b").kind is Kind.REFUTED


def test_layers_alone_are_functions_where_sections_have_no_proof() -> None:
    seen = list[Plan]()

    def refuse(plan: Plan) -> bool:
        seen.append(plan)
        return False

    plan = outline(framed(4), refuse)
    assert plan == outline(framed(4)) and set(plan.functions) == {"f0", "f1"}
    assert [set(p.functions) for p in seen] == [{"f0", "f1", "f2", "f3"}, {"f0", "f1"}, set()]


def test_a_plan_of_few_ops_stays_flat_where_nothing_else_has_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = framed(4)
    assert outline(plan, lambda made: not made.functions) is plan
    monkeypatch.setattr("orchestrator.outlining.outline.FEW_OPS", 20)
    assert outline(plan, lambda made: not made.functions).functions


@pytest.mark.parametrize("plan", [deep(2), clipped(2)], ids=["deep", "clipped"])
def test_a_plan_without_repetitions_stays_as_it_is(plan: Plan) -> None:
    assert outline(plan, always) is plan


def test_nothing_is_provable_of_a_wrong_plan() -> None:
    assert provable(clipped(3)) and not provable(clipped(3, "sum"))


def test_without_solvers_layers_alone_are_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Callable[..., None]:
        raise SolverMissing("no solver")

    monkeypatch.setattr(emission, "_solving", missing)
    assert set(outline(framed(4), provable).functions) == {"f0", "f1"}
