"""Emitter and checker write the same bytes for every op, though they share no code.

A definition that only one of them reads otherwise than docs/certificate.md says would be noticed here, op by
op and without a solver; what the definitions mean is tested in tests/smtlib_emit against the interpreter.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.plan.writing import dumps
from certificates.proof.facts import Fact, Ref
from certificates.proof.stages import AlgebraStage, Case, Def, ElemDef, LayoutStage
from certificates.proof.writing import fact_json, stage_json
from checker.errors import Rejected
from checker.reading.plan import read_plan
from checker.reading.proof import read_proof
from checker.rules.algebra import Algebra
from checker.rules.layout import Layout
from checker.rules.model import Model as CheckerModel
from checker.rules.terms import file_text
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.ledger import LayoutRecipe
from orchestrator.staging.layout import LayoutBuilder
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.layout import LayoutText
from smtlib_emit.model import Model
from tests.conftest import BUILDERS
from tests.orchestrator.plans import alone, every_op, exchange
from tests.orchestrator.random_plans import random_plan
from tests.smtlib_emit.meaning import elem, exact_stage


def moves() -> Plan:
    """Data movement with every attribute in use, and constants of every kind."""
    b = ProgramBuilder()
    x, one = b.input("x", "f32[4,6]"), b.input("one", "f32[1,6]")
    n, i, c = b.input("n", "i64[3]"), b.input("i", "i64[4,2]"), b.input("c", "f32[]")
    made = [
        b.slice(x, [1, 0], [2, 3], [1, 2]), b.slice(x, [0, 5], [4, 1]), b.pad(x, (1, 0), (0, 2)),
        b.pad(x, (0, 0), (0, 0)), b.pad(x, (2, 3), (1, 1)), b.pad(x, (0, 1), (0, 0)),
        b.concatenate([x, x, one], 0), b.concatenate([x, x], 1), b.concatenate([one], 0),
        b.transpose(x, (1, 0)),
        b.broadcast(one, (4, 6), (0, 1)), b.broadcast(c, (2, 2), ()), b.broadcast(x, (4, 3, 6), (0, 2)),
        b.reshape(x, (24,)), b.reshape(x, (2, 12)), b.reshape(x, (4, 1, 6)), b.reshape(x, (1, 8, 3)),
        b.reshape(x, (2, 2, 2, 3)), b.reshape(one, (6, 1)), b.reshape(c, (1, 1)), b.reshape(x, (3, 8)),
        b.gather(x, n), b.gather(x, n, axis=1), b.gather(x, i, axis=1, batch_dims=1),
        x * 3, x / 2, x * x, x / x, b.convert(b.compare(x, x, "LE"), "f32") * x,
        x * b.convert(b.compare(x, x, "GT"), "f32"),
        x * b.broadcast(b.reshape(b.convert(b.compare(c, 0, "EQ"), "f32"), (1, 1)), (4, 6), (0, 1)),
        b.convert(n + n * 2, "f32"), b.convert(b.select(b.compare(n, 1, "NE"), n, n), "i32"),
        b.dot(x, x, contract=((1,), (1,))), b.dot(x, x, contract=((0,), (0,)), batch=((1,), (1,))),
        b.dot(x, x, contract=((0, 1), (0, 1))), b.dot(x, x, contract=((), ())),
        b.dot(x, one, contract=((1,), (1,))),
        b.reduce(x, (0,), "add"), b.reduce(x, (0, 1), "add"), b.reduce(x, (1,), "max"),
        b.reduce(one, (0,), "min"),
        b.negate(x), b.reduce(b.compare(x, x, "LT"), (1,), "and"),
        b.reduce(b.compare(x, x, "LT"), (0, 1), "or"),
    ]  # fmt: skip
    count, flag = b.convert(i, "f32"), b.convert(b.convert(b.compare(i, 1, "LT"), "i64"), "f32")
    plain = b.input("t", "f32[4,2]")
    zero, endless = b.constant(0, "f32[4,2]"), b.constant("inf", "f32[4,2]")
    made += [plain / zero, zero / plain, plain / endless, plain * zero, plain / b.constant(-3, "f32[4,2]")]
    made += [plain * count, count * plain, plain * flag, plain * b.convert(plain, "f64").convert("f32")]
    for value in (made[0], b.iota("i64[3,4]", 1), b.iota("f32[3,4]", 0), b.constant(True, "i1[2]")):
        made.append(b.convert(value, "f32"))
    for k, value in enumerate(made):
        b.output(f"y{k}", value)
    return alone(b)


def collectives() -> Plan:
    """Two uneven classes, two axes: families, rank-dependent slices and constants, all four collectives."""
    mesh = {"dp": 3, "tp": 2}
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[4,6]") * 2)
    groups = {"dp": ["dp"], "tp": ["tp"], "all": ["dp", "tp"]}
    programs = {}
    for label, box in (("two", (0, 2)), ("last", (2, 3))):
        b = ProgramBuilder(mesh, groups, box={"dp": box})
        x = b.input("x", "f32[4,6]")
        at = b.axis_index("dp") + b.axis_index("tp").scale(2)
        whole = b.all_gather(x, "dp", 0)
        made = [
            b.all_reduce(x, "tp"), b.all_reduce(x, "all"), b.all_reduce(x, "dp", "max"), whole,
            b.all_gather(x, "all", 1), b.reduce_scatter(x, "tp", 1), b.all_to_all(x, "tp", 0, 1),
            b.reduce_scatter(b.all_gather(x, "all", 0), "all", 0),
            b.slice(whole, [at, 0], [4, 6]), x * b.constant(at, "f32[4,6]"), x / b.constant(at, "f32[4,6]"),
        ]  # fmt: skip
        for k, value in enumerate(made):
            b.output(f"y{k}", value)
        programs[label] = ({"dp": box}, b.build())
    return build_plan(name="collectives", mesh=mesh, specification=spec.build(), classes=programs, inputs={},
                      outputs={}, groups=groups)  # fmt: skip


def messages() -> Plan:
    """Sent by two classes, received by one; and along time, sums and stacks."""
    mesh, time = {"pp": 2, "dp": 4}, {"mb": 3}
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[4]") * 2)
    programs = {}
    for label, pp, dp in (("one", 0, (0, 1)), ("rest", 0, (1, 4)), ("last", 1, (0, 4))):
        b = ProgramBuilder(mesh, box={"pp": (pp, pp + 1), "dp": dp}, time=time)
        x = b.input("x", "f32[4]")
        turned = Affine.of(3, {"dp": -1})
        if pp:
            made = [b.recv("f32[4]", 0, pp=0), b.recv("f32[4]", 1, pp=0, dp=turned)]
        else:
            made = [b.send(x, 0, pp=1), b.send(x * 2, 1, pp=1, dp=turned)]
        made += [
            b.all_reduce(x, "mb", seq=2),
            b.all_gather(x, "mb", seq=3),
            b.all_reduce(x, "mb", "max", seq=4),
        ]
        made.append(b.slice(x, [b.axis_index("mb")], [2]))
        for k, value in enumerate(made):
            b.output(f"y{k}", value)
        programs[label] = ({"pp": (pp, pp + 1), "dp": dp}, b.build())
    return build_plan(name="messages", mesh=mesh, time=time, specification=spec.build(), classes=programs,
                      inputs={}, outputs={})  # fmt: skip


PLANS: dict[str, Callable[[], Plan]] = {
    "every_op": every_op, "exchange": exchange, "moves": moves, "collectives": collectives,
    "messages": messages, **BUILDERS,
    **{f"random {n}": lambda n=n: random_plan(n, 10) for n in range(6)},
}  # fmt: skip


@cache
def models(name: str) -> tuple[Model, CheckerModel]:
    plan = PLANS[name]()
    return Model(plan), CheckerModel(read_plan(dumps(plan)))


def proof(facts: list[Fact], *stages: Any) -> Any:
    data = {"format": "trainverify-proof", "version": 1, "facts": [fact_json(f) for f in facts],
            "stages": [stage_json(s) for s in stages]}  # fmt: skip
    return read_proof((json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n").encode())


def same(ours: bytes, theirs: str, what: str) -> None:
    """The bytes; if not, the first line that differs."""
    lines = itertools.zip_longest(ours.decode().split("\n"), theirs.split("\n"))
    assert next(((a, b) for a, b in lines if a != b), None) is None, what


def sums(model: Model) -> list[Ref]:
    return list(dict.fromkeys(model.reduced(r, str(op.attrs["kind"])) for r, op in model.ops.items()
                              if op.name == "all_reduce"))  # fmt: skip


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("name", PLANS)
def test_layout_definitions(name: str, beyond: int) -> None:
    """Every op at symbolic indices; `beyond` its range too, where the definition needs a guard."""
    model, theirs = models(name)
    done = 0
    for ref in [*model.ops, *sums(model)]:
        over = tuple((f"x{i}", lo - beyond, hi + beyond) for i, (lo, hi) in
                     enumerate(model.tensors.ranges(ref)))  # fmt: skip
        index = tuple(Affine.symbol(s) for s, _, _ in over)
        knowledge = Knowledge(model)
        goal = knowledge.add(Fact(ref, ref, over, index, index), LayoutRecipe())
        builder = LayoutBuilder(knowledge, goal, LayoutRecipe(frozenset((ref,))))
        try:
            if isinstance(ref, str):
                builder.define(ref, index)
            else:
                builder.premises.append(Def(ref, index))
            stage = LayoutStage(goal, "t", tuple(builder.symbols), tuple(builder.premises), "0001")
            text = LayoutText(model, knowledge.facts, stage).text("unsat")
        except NoDefinition:
            continue
        read = proof(list(knowledge.facts), stage)
        if isinstance(ref, str) and model.ops[ref].name in ("constant", "iota"):
            with pytest.raises(Rejected, match=r"^obligation 5 .* has no layout def"):
                Layout(theirs, read.facts, read.stages[0], ref)
            continue
        layout = Layout(theirs, read.facts, read.stages[0], str(ref))
        ours = file_text("t", 2, "t", "unsat", list(layout.ranges), layout.assertions, theirs.signature,
                         theirs.describe)  # fmt: skip
        same(ours, text, f"{ref}")
        done += 1
    assert done > 2


class Premises(Algebra):
    """A stage whose goals are not looked at."""

    def _check_goals(self) -> None:
        pass


def few(stage: AlgebraStage) -> dict[str, tuple[int, int]]:
    return {c: (n, min(n, 2)) for c, (n, _) in stage.classes.items()}


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_algebra_definitions(name: str, reduced: bool) -> None:
    """Every op at an element; `reduced`: over two representatives of every class, with weights."""
    model, theirs = models(name)
    refs = [*model.tensors.types, *sums(model)]
    exact = exact_stage(model, 0, refs)
    classes = few(exact) if reduced else exact.classes
    done = 0
    for ref in [*model.ops, *sums(model)]:
        ranges = model.tensors.ranges(ref)
        over = tuple((f"x{i}", lo, hi) for i, (lo, hi) in enumerate(ranges))
        index = tuple(Affine.symbol(s) for s, _, _ in over)
        goal_at = tuple(tree[0][1] for tree in exact.trees[ref])
        at = [tuple(hi - 1 if not reduced else min(hi - 1, lo + 1) for lo, hi in ranges),
              tuple(lo for lo, _ in ranges)]  # fmt: skip
        case = Case(tuple((0,) * len(c) for c in goal_at), tuple(ElemDef(elem(model, ref, a)) for a in at),
                    "0001")  # fmt: skip
        stage = AlgebraStage(0, "t", classes, exact.trees, goal_at, (case,))
        facts = [Fact(ref, ref, over, index, index)]
        constant = isinstance(ref, str) and model.ops[ref].name == "constant"
        try:
            if constant:
                raise NoDefinition
            text = AlgebraText(model, facts, stage).text(case, "unsat")
        except NoDefinition as error:
            if "rank-dependent" in str(error) and not constant:
                continue  # the emitter's caution: for the checker it is an element like any other
            with pytest.raises(Rejected, match=r"obligation [58] "):
                read = proof(facts, stage)
                Premises(theirs, read.facts, read.stages[0], str(ref))
            continue
        read = proof(facts, stage)
        found = Premises(theirs, read.facts, read.stages[0], str(ref)).cases[0]
        ours = file_text("e", 2, "t", "unsat", [], found.assertions, lambda _: "() Real", theirs.describe)
        same(ours, text, f"{ref}")
        done += 1
    assert done > 1
