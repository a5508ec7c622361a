"""Sites are ops, or what one line makes, on which all wrong outputs depend."""

from __future__ import annotations

from orchestrator.refuting.sites import Sites

from .mistakes import step, value


def test_what_bears_on_right_outputs_only_is_no_site() -> None:
    plan = step("twice")
    wrong = [i for i, r in enumerate(plan.outputs) if r.plan == "y"]
    named = {op.out for site in Sites(plan, wrong).all() for _, op in site.ops}
    other = plan.classes[0].program.outputs["z"]
    assert value(plan, "all_reduce") in named and other not in named


def test_without_a_common_op_there_is_none_for_two_wrong_outputs() -> None:
    """No single op bears on both outputs; together they may."""
    plan = step()
    sites = Sites(plan, [0, 1])
    assert all(len(site.ops) > 1 for site in sites.all())


def test_every_site_comes_once() -> None:
    plan = step("twice")
    keys = [frozenset((c, op.out) for c, op in site.ops) for site in Sites(plan, [0]).all()]
    assert len(keys) == len(set(keys)) > 3


def test_readers_of_a_value_are_found() -> None:
    plan = step()
    users = Sites(plan, [0]).users["c0"]
    assert [op.name for op in users[value(plan, "reduce")]] == ["all_reduce"]
    assert users["x"] and not users[plan.classes[0].program.outputs["y"]]
