"""Names that a plan may not use are those of obligation files: here, in the checker, in the document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.errors import FormatError
from certificates.plan import names
from certificates.plan.names import check_symbol
from certificates.plan.ops import FUNCTIONS
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from checker.language import functions as checker
from checker.reading.plan import read_plan

ROOT = Path(__file__).resolve().parents[3]


def on_axis(axis: str) -> Plan:
    """One sum over a mesh axis of this name."""

    def step(mesh: dict[str, int] | None, rows: int) -> ProgramBuilder:
        b = ProgramBuilder(mesh)
        total: Value = b.input("x", f"f32[{rows}]").sum()
        b.output("y", b.all_reduce(total, axis) if mesh else total)
        return b

    mesh = {axis: 2}
    specification, plan = step(None, 4).build(), step(mesh, 2).build()
    return build_plan(
        name="named", mesh=mesh, specification=specification, classes=plan,
        inputs={"x": {axis: Shard(0)}}, outputs={"y": {}},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["fexp", "flog", "frsqrt", "flogistic", "mul", "recip", "neg_inf", "par"])
def test_an_axis_named_like_a_function_of_the_obligations_is_refused_at_once(name: str) -> None:
    with pytest.raises(FormatError, match="not reserved"):
        on_axis(name)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "rsqrt", "logistic", "pow"])
def test_names_without_the_prefix_are_free_on_both_sides(name: str) -> None:
    assert dict(read_plan(dumps(on_axis(name))).mesh) == {name: 2}


def test_both_sides_of_the_wall_reserve_the_same_names_in_the_same_order() -> None:
    assert list(FUNCTIONS) == list(checker.FUNCTIONS)
    assert names.RESERVED == checker.RESERVED


def test_the_document_lists_the_same_functions() -> None:
    text = (ROOT / "docs" / "certificate.md").read_text()
    order = re.search(r"in the fixed order `([a-z0-9_ ]+)`", text)
    assert order is not None and order[1].split() == list(FUNCTIONS)


def test_every_reserved_name_is_refused() -> None:
    for name in names.RESERVED:
        with pytest.raises(FormatError, match="reserved"):
            check_symbol(name, "mesh axis")
