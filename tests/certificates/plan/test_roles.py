"""A role that a program contradicts is refused: a run of many steps would not be the step that is proved."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from certificates.plan.roles import check_roles


def step() -> Program:
    """``w`` changes, ``x`` is read, ``c`` leaves as it came."""
    b = ProgramBuilder({})
    w, x, c = (b.input(name, "f32[2]") for name in ("w", "x", "c"))
    b.output("w", w - x)
    b.output("c", c)
    return b.build()


@pytest.mark.parametrize(
    ("given", "constants", "reason"),
    [
        (("x", "c"), (), "given must be a sorted list of different names"),
        ((), ("c", "c"), "constants must be a sorted list of different names"),
        (("y",), (), "given names y, which is no input"),
        (("w",), (), "given names w, which a step leaves with another value"),
        ((), ("w",), "constants names w, which a step leaves with another value"),
        (("x",), ("x",), "x is declared both given and constant"),
    ],
)
def test_contradictions(given: tuple[str, ...], constants: tuple[str, ...], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        check_roles(given, constants, [step()])


def test_what_a_step_leaves_as_it_was_may_have_either_role(mlp: Plan) -> None:
    check_roles(("c", "x"), (), [step()])
    check_roles(("x",), ("c",), [step()])
    check_roles(mlp.given, mlp.constants, [mlp.specification, *(c.program for c in mlp.classes)])
