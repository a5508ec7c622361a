"""The layers of a pipeline become functions at its stages: one body, whichever stage has the layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from certificates.authoring.scheduling import with_schedule
from certificates.plan.affine import Affine
from certificates.plan.calls import calls
from certificates.plan.checking import check_plan
from certificates.plan.functions import inline
from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from orchestrator.outlining.outline import expressions, outline
from orchestrator.outlining.slices import AFTER, BEFORE, EACH, along, phases, roles, sliced
from orchestrator.outlining.stacks import spread
from tests.llama_pipeline import llama
from tests.schedule_plans import Places, built, torch_lanes


@pytest.fixture(scope="module")
def flat() -> Plan:
    """Eight layers on two stages, as no function was ever there."""
    return inline(llama(8, 2, 4, "small"))


def test_every_stage_calls_its_own_layers_of_one_function(flat: Plan) -> None:
    made = outline(flat)
    check_plan(made)
    assert made.version == 4 and {f.along for f in made.functions.values()} == {("pp",)}
    for name in made.functions:
        of = [{c.instance for c in calls(cls.program) if c.function == name} for cls in made.classes]
        assert of[0].isdisjoint(of[1]) and all(of)
        assert of[0] | of[1] == {c.instance for c in calls(made.specification) if c.function == name}
    known: dict[object, int] = {}
    assert expressions(inline(made), known) == expressions(flat, known)
    assert max(len(c.program.ops) for c in made.classes) < len(flat.classes[0].program.ops) / 3


def test_what_is_not_accepted_stays_flat(flat: Plan) -> None:
    assert outline(flat, lambda _plan: False) == flat


def test_stages_lie_along_the_axis_of_which_every_class_has_one_coordinate(flat: Plan) -> None:
    assert along(flat) == ["pp"]
    (role,) = roles(flat, "pp")
    assert role.classes == tuple(c.name for c in flat.classes) and "pp" not in role.box
    assert role.name not in flat.by_class


def test_a_layer_that_knows_its_stage_is_no_function_of_all(flat: Plan) -> None:
    """One number of one layer depends on the coordinate along `pp`: it stands in no body."""
    cls = flat.classes[1]
    programs = {"s": spread(flat.specification)} | {c.name: spread(c.program) for c in flat.classes}
    instances = sliced(flat, programs, roles(flat, "pp"), "pp")[cls.name][0].instances
    victim = next(op for op in next(iter(instances.values())).templates if op.name == "slice")
    start = (Affine.of(-1, {"pp": 1}), *victim.affines("start")[1:])
    for op, stays in ((victim, True), (replace(victim, attrs={**victim.attrs, "start": start}), False)):
        program = replace(cls.program, ops=tuple(op if o.out == op.out else o for o in cls.program.ops))
        plan = replace(flat, classes=(flat.classes[0], replace(cls, program=program)))
        found = sliced(plan, {**programs, cls.name: spread(program)}, roles(plan, "pp"), "pp")[cls.name]
        inside = {t.out for r in found for i in r.instances.values() for t in i.templates}
        assert (victim.out in inside) is stays


def test_phases_are_told_by_the_schedule() -> None:
    places = Places((0, 1), 2)
    b = built(places)
    plan = with_schedule(b.plan, torch_lanes(b, "GPipe").build())
    program = plan.classes[1].program
    found = phases(plan, "c1", program)
    kinds = {op.out: op for op in program.ops}
    assert {kinds[v].name for v, phase in found.items() if phase == BEFORE} == set()
    assert all(found[op.out] == EACH for op in program.ops if op.name in ("recv", "tanh"))
    over_time = [op for op in program.ops if op.name in COLLECTIVES and plan.groups[op.text("group")].steps]
    assert over_time and all(found[op.out] == AFTER for op in over_time)
    assert phases(b.plan, "c1", program) == {}, "without a schedule nothing is said"
