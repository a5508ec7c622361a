"""Letters in other places, and masks as truth values."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value
from orchestrator.ghosts.following import Follower
from orchestrator.ghosts.moving import along
from orchestrator.ghosts.values import Letter, letter


def moved(b: ProgramBuilder, y: Value) -> tuple[Follower, frozenset[Letter]]:
    b.output("y", y)
    program = b.build()
    f = Follower(program, lambda _: False, lambda _: False)
    for op in program.ops:
        f.scope.writer.passed(op)
    return f, f.moving.moved(f.scope.ops[program.outputs["y"]]).letters()


def test_broadcasts_and_transposes_name_other_dimensions() -> None:
    b = ProgramBuilder()
    assert moved(b, b.broadcast(b.input("x", "f32[3]"), (2, 3), (1,)))[1] == {Letter("x", (1,))}
    b = ProgramBuilder()
    assert moved(b, b.input("x", "f32[2,3,4]").transpose(2, 0, 1))[1] == {Letter("x", (1, 2, 0))}
    assert along(letter("x", (0, 1)), (3, 2)) == letter("x", (3, 2))


def test_joined_dimensions_are_a_reshaped_letter_and_back() -> None:
    b = ProgramBuilder()
    f, found = moved(b, b.reshape(b.input("x", "f32[2,3,4]"), (6, 4)))
    (x,) = found
    assert x.at == (0, 1) and f.scope.writer.merged(x.name) == [(2, 3), (4,)]
    back = f.moving.split(along(letter(x.name, (0, 1)), (0, 1)), {0: (2, 3)}, {0: (0, 1), 1: (2,)})
    assert back.letters() == {Letter("x", (0, 1, 2))}


def test_a_mask_is_one_letter_however_it_is_written() -> None:
    """Filling where it is true, or keeping where it is."""
    b = ProgramBuilder()
    x, p = b.input("x", "f32[2,3]"), b.input("p", "i1[3]")
    wide, zero = b.broadcast(p, (2, 3), (1,)), b.constant(0, "f32[2,3]")
    b.output("y", b.select(wide, zero, x))
    b.output("z", b.select(wide, x, zero))
    program = b.build()
    f = Follower(program, lambda _: False, lambda _: False)
    y, z = (f.moving.chosen(f.scope.ops[program.outputs[n]]) for n in "yz")
    truths = {x for v in (y, z) for x in v.letters() if x.truth}
    assert len(truths) == 1 and {t.at for t in truths} == {(1,)}
    assert f.scope.values.plus(y, z) == letter("x", (0, 1))


def test_a_constant_mask_chooses() -> None:
    b = ProgramBuilder()
    x, y = b.input("x", "f32[2]"), b.input("y", "f32[2]")
    b.output("z", b.select(b.constant(False, "i1[2]"), x, y))
    program = b.build()
    f = Follower(program, lambda _: False, lambda _: False)
    assert f.moving.chosen(f.scope.ops[program.outputs["z"]]) == letter("y", (0,))
