"""What is known of the tensors of a program."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from certificates.plan.program import Program
from orchestrator.ghosts.following import Follower
from orchestrator.ghosts.scope import Scope
from orchestrator.ghosts.values import OMEGA, Letter


def follower(b: ProgramBuilder) -> tuple[Scope, Program]:
    program = b.build()
    return Follower(program, lambda n: n == "p", lambda _: False).scope, program


def test_sums_and_multiples_are_seen_through() -> None:
    b = ProgramBuilder()
    x, y = b.input("x", "f32[4,5]"), b.input("y", "f32[4]")
    b.output("z", (x - b.broadcast(y, (4, 5), (0,))) * 2)
    scope, program = follower(b)
    name = program.outputs["z"]
    found = scope.value(name)
    assert found.letters() == {Letter("x", (0, 1)), Letter("y", (0,))}
    assert sorted(found.above.values()) == [-2, 2] and name in scope.seen


def test_products_of_tensors_are_letters() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[4,1,5]")
    b.output("z", x * x)
    scope, program = follower(b)
    (found,) = scope.value(program.outputs["z"]).letters()
    assert found.at == (0, 2), "a dimension of size 1 is no dimension of a letter"
    assert (
        scope.alone(scope.value("x")) is not None and scope.alone(scope.value(program.outputs["z"])) == found
    )


def test_constants_are_numbers_or_infinite() -> None:
    b = ProgramBuilder()
    b.output("y", b.constant("1/3", "f32[2]"))
    b.output("z", b.constant("-inf", "f32[2]"))
    scope, program = follower(b)
    assert scope.number(program.outputs["y"]) is not None and scope.is_constant(program.outputs["y"])
    assert list(scope.value(program.outputs["z"]).atoms()) == [OMEGA]
    assert scope.number(program.outputs["z"]) is None


def test_a_letter_in_other_places_has_its_signs() -> None:
    b = ProgramBuilder()
    b.output("y", b.input("p", "f32[4]"))
    scope, _ = follower(b)
    scope.ops = {"p": None}  # type: ignore[dict-item]
    scope.lively.add("p")
    assert scope.like("%7", "p") == "%7" and "%7" in scope.lively and "%7" in scope.signed
