"""Where one edit could set all wrong outputs right: an op, or the ops of one line."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from certificates.plan.plan import Plan
from orchestrator.refuting.sites import Sites

from ..plans import pair


def names(sites: Sites, together: bool | None = None) -> list[list[str]]:
    """The ops of sites by name of the op."""
    return [[op.name for _, op in s.ops] for s in sites.all() if together is None or s.together is together]


def looped() -> Plan:
    """One line takes the tangent of three inputs and doubles it."""

    def write(b: ProgramBuilder) -> None:
        for name in ("u", "v", "w"):
            b.output(name + "2", b.tanh(b.input(name, "f32[4]")) * 2)

    held = ("u", "v", "w")
    return pair({"dp": 2}, write, write, {n: {} for n in held}, {n + "2": {} for n in held})


def test_ops_of_one_line_are_one_place() -> None:
    """A mistake in a loop over parameters is made once and seen thrice."""
    found = names(Sites(looped(), [0, 1, 2]))
    assert ["tanh"] * 3 in found and ["multiply"] * 3 in found
    assert not any(len(ops) < 3 for ops in found)


def test_an_op_on_which_one_output_alone_rests_is_a_place_if_that_is_wrong() -> None:
    plan = looped()
    found = list(Sites(plan, [1]).all())
    assert any([op.name for _, op in s.ops] == ["tanh"] for s in found)
    outs = {op.out for s in found if not s.together and len(s.ops) == 1 for _, op in s.ops}
    reach = Sites(plan, [1]).reach["c0"]
    assert outs == {op.out for op in plan.classes[0].program.ops if reach[op.out] == 1 << 1}


def test_a_line_s_ops_are_one_place_without_those_of_right_outputs() -> None:
    plan = looped()
    assert plan.classes[0].program.ops[0].loc == plan.classes[0].program.ops[-1].loc
    found = names(Sites(plan, [0, 2]))
    assert ["tanh"] * 2 in found and all(len(ops) >= 2 for ops in found)


def test_what_a_line_gives_to_others_is_one_place_whatever_the_ops(mlp: Plan) -> None:
    for site in Sites(mlp, [0]).all():
        if site.together:
            assert len({op.loc for _, op in site.ops}) == 1
            assert all(op.name != "constant" for _, op in site.ops)


def test_every_place_is_named_once(mlp: Plan) -> None:
    found = [frozenset((c, op.out) for c, op in s.ops) for s in Sites(mlp, [0]).all()]
    assert len(found) == len(set(found)) and found


def test_a_value_bears_on_the_outputs_that_are_computed_from_it(mlp: Plan) -> None:
    reach = Sites(mlp, [0]).reach["c0"]
    program, every = mlp.classes[0].program, (1 << len(mlp.outputs)) - 1
    assert reach["batch.x"] == every
    for number, relation in enumerate(mlp.outputs):
        assert reach[program.outputs[relation.plan]] & 1 << number
    assert reach[program.outputs["loss"]] == 1 << [r.plan for r in mlp.outputs].index("loss")


def test_the_readers_of_a_value_are_known_once_each(mlp: Plan) -> None:
    """An op that reads a value twice is one reader."""
    square = next(op for op in mlp.classes[0].program.ops if op.name == "multiply" and op.ins[0] == op.ins[1])
    readers = Sites(mlp, [0]).users["c0"][square.ins[0]]
    assert readers.count(square) == 1 and all(square.ins[0] in op.ins for op in readers)


def test_an_op_stands_for_itself_in_every_class_that_has_it(uneven: Plan) -> None:
    """Rank classes are of one program: the same line is edited in all of them."""
    assert len(uneven.classes) > 1
    widest = max(Sites(uneven, [0]).all(), key=lambda s: len({c for c, _ in s.ops}))
    assert {c for c, _ in widest.ops} == set(uneven.by_class)


def test_one_op_that_a_line_gives_to_others_is_a_place_for_every_kind_of_edit(mlp: Plan) -> None:
    """Only where several names are meant together are edits fewer."""
    for site in Sites(mlp, [0]).all():
        assert not site.together or len({op.name for _, op in site.ops}) > 1


def test_ops_of_a_line_that_the_same_lines_read_are_one_place() -> None:
    """Of the reductions of a loop some are added up again and one is used: they may be meant apart."""

    def twice(b: ProgramBuilder) -> None:
        first, second, third = (b.tanh(b.input(name, "f32[4]")) for name in ("u", "v", "w"))
        both = first + second
        b.output("y", both - third)

    plan = pair({"dp": 2}, twice, twice, {n: {} for n in ("u", "v", "w")}, {"y": {}})
    ops = [op for op in plan.classes[0].program.ops if op.name == "tanh"]
    places = [[op.out for _, op in s.ops] for s in Sites(plan, [0]).all()]
    assert [ops[0].out, ops[1].out] in places


def test_a_line_that_makes_right_ones_beside_wrong_ones_is_known() -> None:
    plan = looped()
    tangents = [("c0", op) for op in plan.classes[0].program.ops if op.name == "tanh"]
    assert Sites(plan, [1]).right_beside(tangents[1:2])
    assert not Sites(plan, [0, 1, 2]).right_beside(tangents)


def test_the_number_behind_a_value_is_known_through_broadcasts() -> None:
    plan = looped()
    sites = Sites(plan, [0])
    product = next(op for op in plan.classes[0].program.ops if op.name == "multiply")
    assert sites.literal("c0", product.ins[1]) == "2" and sites.literal("c0", product.ins[0]) is None
