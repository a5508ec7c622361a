"""Tensors that are never negative: what is emitted by the law ``root`` is what the checker accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.functions import body_plan
from certificates.plan.placements import Replicate
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.writing import dumps
from checker.language.proof import Tensor
from checker.reading.plan import read_plan
from checker.rules import positive
from checker.rules.model import Model
from checker.rules.roots import nonnegative
from orchestrator.emit import emit
from orchestrator.outlining.outline import outline
from orchestrator.relating.signs import Signs
from tests.orchestrator.deep_plans import clipped, deep
from tests.orchestrator.random_plans import random_plan
from trainverify import Kind, check


def agree(plan: Plan) -> tuple[int, int]:
    """How many tensors are never negative, and how many may be; the checker says the same of each."""
    signs, theirs = Signs(plan), read_plan(dumps(plan))
    found = [0, 0]
    for function in ("", *plan.functions):
        here = body_plan(plan, function) if function else plan
        model = Model(theirs.functions[function], function, theirs) if function else Model(theirs)
        for owner, program in {"s": here.specification, **{c.name: c.program for c in here.classes}}.items():
            for value in program.types():
                mine = signs.nonnegative(function, f"{owner}:{value}")
                assert mine == nonnegative(model, Tensor(owner, value)), (function, owner, value)
                found[not mine] += 1
    return found[0], found[1]


@pytest.mark.parametrize("functions", ["none", "layers", "all"])
@pytest.mark.parametrize("flat", [clipped(4), deep(4)], ids=["clipped", "deep"])
def test_the_checker_has_the_same_signs(flat: Plan, functions: str) -> None:
    plan = flat if functions == "none" else outline(flat, (lambda _: True) if functions == "all" else None)
    good, bad = agree(plan)
    assert good > 3 and bad > 3


@pytest.mark.parametrize("seed", range(12))
def test_the_checker_has_the_same_signs_in_random_plans(seed: int) -> None:
    agree(random_plan(seed))


def squared_root(positive: bool) -> Plan:
    """``sqrt(r) * sqrt(r)`` against ``r``, which is an input or the square of one."""
    spec, b = ProgramBuilder(), ProgramBuilder({"tp": 2}, {"tp": ("tp",)})
    for p in (spec, b):
        x = p.input("x", "f32[4]")
        x = x * x if positive else x
        root = p.sqrt(x)
        p.output("y", root * root if p is b else x)
    whole = {n: {"tp": Replicate()} for n in ("x", "y")}
    return build_plan(
        name="root", mesh={"tp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": whole["x"]}, outputs={"y": whole["y"]},
    )  # fmt: skip


@pytest.mark.parametrize("positive", [True, False])
def test_a_root_of_what_may_be_negative_is_not_squared_away(positive: bool, tmp_path: Path) -> None:
    """``sqrt(x) * sqrt(x)`` is no real number where x is negative: it is not x."""
    done = emit(squared_root(positive), tmp_path / "b", witness_seconds=5)
    assert (done.exit_code == 0) == positive
    kind = check(tmp_path / "b").kind
    assert kind is Kind.PROVED if positive else kind in (Kind.REFUTED, Kind.UNKNOWN)


def test_signs_pass_through_messages_as_the_checker_says() -> None:
    """A message has no operands where it is received: what is sent decides, not nothing at all."""
    mesh = {"pp": 2}
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[3]"))
    first, last = (ProgramBuilder(mesh, box={"pp": (s, s + 1)}) for s in (0, 1))
    x = first.input("x", "f32[3]")
    sent = [first.exponential(x), x, first.constant("-inf", "f32[3]"), x * x]
    for seq, value in enumerate(sent):
        first.send(value, seq, pp=1)
    first.output("y", x)
    got = [last.recv("f32[3]", seq, pp=0).name for seq in range(4)]
    classes = {"c0": ({"pp": (0, 1)}, first.build()), "c1": ({"pp": (1, 2)}, last.build())}
    relations = [Relation(n, n, (whole_piece("c0"),)) for n in ("x", "y")]
    plan = build_plan(
        name="sent", mesh=mesh, specification=spec.build(), classes=classes, inputs=relations[:1],
        outputs=relations[1:],
    )  # fmt: skip
    ours, theirs = Signs(plan), positive.Signs(Model(read_plan(dumps(plan))))
    told = {}
    for value in got:
        told[value] = ours.positive("", f"c1:{value}"), ours.finite("", f"c1:{value}")
        tensor = Tensor("c1", value)
        assert told[value] == (theirs.positive(tensor), theirs.finite(tensor))
        assert ours.nonnegative("", f"c1:{value}") == theirs.nonnegative(tensor)
    assert list(told.values()) == [(True, True), (False, True), (False, False), (False, True)]


def whole_piece(cls: str) -> Piece:
    return Piece(cls, (3,), (Affine.symbol("z0"),), (Affine.symbol("z0"),))
