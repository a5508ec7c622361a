"""A layer with packed rows is cut: what stands before them and behind them is in functions."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainverify
from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.authoring.packing import Rows
from certificates.authoring.scheduling import recv, send, with_schedule
from certificates.plan.affine import Affine
from certificates.plan.functions import inline
from certificates.plan.ops import CALL, MESSAGES, PACKED
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.program import Program
from certificates.plan.schedule import Batch, Lane, Run, Schedule, spans
from orchestrator.outlining import packing
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.outline import outline
from orchestrator.outlining.packing import apart, written
from tests.pipeline_plans import whole
from tests.schedule_plans import judged

TOKENS, WIDTH, KEYS, RANKS = 4, 3, 4, 2
#: Enough for a repetition to be one.
BEFORE, AFTER = 20, 20
#: Of what stands behind the packing, and does not need its rows.
BESIDE = 0


def _long(b: ProgramBuilder, x: Value, count: int) -> Value:
    for _ in range(count):
        x = b.tanh(x * x)
    return x


def through_experts(order: Rows, rows: Value, weights: Value, ranks: int) -> Value:
    """Packed rows times the weights of their keys, which are on other ranks if there are several."""
    if ranks == 1:
        return order.dot(rows, weights)
    arrived = order.shipped("ep")
    grouped = arrived.regrouped()
    found = grouped.ungroup(grouped.dot(grouped.regroup(arrived.ship(rows)), weights))
    return arrived.ship_back(found)


def _layer(b: ProgramBuilder, x: Value, number: int, ranks: int) -> Value:
    """Rows go to the weights of the key with the largest score, on the rank that has it."""
    tokens = x.shape[0]
    router = b.input(f"params.layers.{number}.router", f"f32[{WIDTH},{KEYS}]")
    weights = b.input(f"params.layers.{number}.weights", f"f32[{KEYS // ranks},{WIDTH},{WIDTH}]")
    x = _long(b, x, BEFORE)
    scores = b.dot(x, router, ((1,), (0,)))
    grid = (tokens, KEYS)
    hit = b.compare(scores, b.broadcast(b.reduce(scores, (1,), "max"), grid, (0,)), "EQ")
    numbers = b.iota(f"i64[{tokens},{KEYS}]", 1)
    keys = b.reduce(b.select(hit, numbers, b.constant(0, numbers.type)), (1,), "max")
    order = Rows.sorted(b, keys, KEYS)
    rows = order.unpack(through_experts(order, order.pack(x), weights, ranks))
    return _long(b, x + rows + (_long(b, x, BESIDE) if BESIDE else x), AFTER)


def _program(b: ProgramBuilder, layers: int, ranks: int) -> ProgramBuilder:
    x = b.input("x", f"f32[{TOKENS * (RANKS // ranks)},{WIDTH}]")
    for number in range(layers):
        x = _layer(b, x, number, ranks)
    b.output("y", x)
    return b


def stack(layers: int) -> Plan:
    params = {f"params.layers.{n}.router": {"ep": Replicate()} for n in range(layers)}
    experts = {f"params.layers.{n}.weights": {"ep": Shard(0)} for n in range(layers)}
    return build_plan(
        name="stack",
        mesh={"ep": RANKS},
        specification=_program(ProgramBuilder(), layers, 1).build(),
        classes=_program(ProgramBuilder({"ep": RANKS}), layers, RANKS).build(),
        inputs={"x": {"ep": Shard(0)}} | params | experts,
        outputs={"y": {"ep": Shard(0)}},
    )


def _all_ops(plan: Plan) -> list[str]:
    programs = [plan.specification, *(c.program for c in plan.classes)]
    return [op.name for program in programs for op in program.written]


def test_what_stands_around_packed_rows_is_called_and_computes_the_same() -> None:
    plan = stack(4)
    outlined = outline(plan)
    assert len(outlined.functions) == 2 and outlined.version == 3
    bodies = [b for f in outlined.functions.values() for b in (f.specification, *f.classes.values())]
    assert not any(op.name in PACKED for body in bodies for op in body.ops)
    names = _all_ops(outlined)
    assert [n for n in names if n in PACKED] == [n for n in _all_ops(plan) if n in PACKED]
    assert names.count(CALL) > 0 and "tanh" not in names
    assert len(inline(outlined).classes[0].program.ops) == len(plan.classes[0].program.ops)


def test_depth_costs_no_obligations() -> None:
    """Twice as many layers are proved by the same files, and by a few stages more for each layer."""
    few, many = (trainverify.verify(outline(stack(n)), jobs=1) for n in (3, 6))
    assert few.kind is many.kind is trainverify.Kind.PROVED, many.report
    assert _obligations(few.report) == _obligations(many.report)


def _obligations(report: str) -> str:
    return next(line for line in report.splitlines() if line.endswith("obligations confirmed by z3"))


def test_keys_stay_where_they_are_sorted() -> None:
    """Their range has to be evident there: the largest number of a hit is apart, the hits are not."""
    program = written(stack(3).specification)
    kept = apart(program)
    for kind, stays in {"i64": True, "f32": False}.items():
        assert {op.out in kept for op in program.ops if (op.name, op.type.dtype) == ("reduce", kind)} == {
            stays
        }
    assert not any(op.out in kept for op in program.ops if op.name in ("compare", "tanh", "select"))


def test_ranks_that_pack_rows_where_the_single_device_does_not_stay_flat() -> None:
    """Half of the ranks' layer would be paired with the whole layer of the single device."""
    plan = stack(3)
    plain = Program(plan.specification.inputs, plan.specification.ops, plan.specification.outputs)
    flat = replace(plan, specification=plain)
    assert outline(flat) == flat


def test_an_outlined_plan_that_is_not_accepted_stays_flat() -> None:
    plan = stack(3)
    asked: list[Plan] = []
    assert outline(plan, lambda made: bool(asked.append(made))) == plan
    assert [len(made.functions) for made in asked] == [2]


@pytest.mark.parametrize("long", [2, 20])
def test_parts_of_a_few_ops_stay_flat(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call costs more than it saves."""
    monkeypatch.setattr("tests.orchestrator.outlining.test_packing.AFTER", long)
    functions = outline(stack(3)).functions
    assert len(functions) == (1 if long == 2 else 2)


STAGES, EACH = 2, 3
#: The number of the message, and how far apart stages number what they meet in.
SENT, APART = 1000, 100


def pipeline() -> Plan:
    """Three layers on each of two stages, which hand on what they computed; the last one has the output."""
    z = Affine.symbol("z0"), Affine.symbol("z1")
    rows = (TOKENS, WIDTH), z, (Affine.of(0, {"ep": TOKENS, "z0": 1}), z[1])
    inputs = [Relation("x", "x", (Piece("c0", *rows),))]
    classes = {}
    for stage in range(STAGES):
        box = {"pp": (stage, stage + 1)}
        b = ProgramBuilder({"pp": STAGES, "ep": RANKS}, box=box)
        for _ in range(stage * APART):
            b.rendezvous()
        kind = f"f32[{TOKENS},{WIDTH}]"
        value = b.recv(kind, SENT, pp=stage - 1) if stage else b.input("x", kind)
        for number in range(stage * EACH, (stage + 1) * EACH):
            value = _layer(b, value, number, RANKS)
            router, weights = f"params.layers.{number}.router", f"params.layers.{number}.weights"
            inputs.append(whole(router, (WIDTH, KEYS), [f"c{stage}"]))
            inputs.append(_by_key(weights, f"c{stage}"))
        if stage + 1 < STAGES:
            b.send(value, SENT, pp=stage + 1)
        else:
            b.output("y", value)
        classes[f"c{stage}"] = box, b.build()
    return build_plan(
        name="staged",
        mesh={"pp": STAGES, "ep": RANKS},
        specification=_program(ProgramBuilder(), STAGES * EACH, 1).build(),
        classes=classes,
        inputs=inputs,
        outputs=[Relation("y", "y", (Piece(f"c{STAGES - 1}", *rows),))],
    )


def scheduled(plan: Plan) -> Plan:
    """All of a stage in one segment, before it sends or once it has received."""
    segments, lanes = {}, []
    for stage, cls in enumerate(plan.classes):
        own = [i for i, op in enumerate(cls.program.ops) if op.name not in MESSAGES]
        segments[cls.name] = {"all": spans(own)}
        message = Batch("pp", (recv(SENT) if stage else send(SENT),))
        events = (message, Run("all")) if stage else (Run("all"), message)
        lanes.append(Lane(f"l{stage}", dict(cls.box), events))
    return with_schedule(plan, Schedule(segments, {}, tuple(lanes)))


def _by_key(name: str, cls: str) -> Relation:
    z = tuple(Affine.symbol(f"z{i}") for i in range(3))
    there = (Affine.of(0, {"ep": KEYS // RANKS, "z0": 1}), *z[1:])
    return Relation(name, name, (Piece(cls, (KEYS // RANKS, WIDTH, WIDTH), z, there),))


@pytest.mark.parametrize("beside", [0, 20])
def test_layers_of_stages_are_cut_where_their_rows_are_packed(
    beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind the packing, and is not needed for it, is called with what follows: nothing else may
    stand amid a call."""
    monkeypatch.setattr("tests.orchestrator.outlining.test_packing.BESIDE", beside)
    plan = scheduled(pipeline())
    outlined = outline(plan)
    safe = judged(outlined)
    assert safe is not None and safe.safe, safe
    assert len(outlined.functions) == 2 and all(f.along == ("pp",) for f in outlined.functions.values())
    long = sorted(sum(op.name == "tanh" for op in f.specification.ops) for f in outlined.functions.values())
    assert long == sorted((BEFORE, AFTER + beside))
    assert "tanh" not in _all_ops(outlined)
    verdict = trainverify.verify(outlined, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report


def test_what_only_moves_a_value_is_with_what_made_it() -> None:
    """Shares of a sum over runs are known as a sum only: no part is given one to convert it."""
    b = ProgramBuilder()
    x, keys = b.input("x", f"f32[{TOKENS},{WIDTH}]"), b.input("keys", f"i64[{TOKENS}]")
    early = b.tanh(x * x)
    order = Rows.sorted(b, keys, KEYS)
    share = order.outer(order.pack(early), order.pack(x))
    moved = b.convert(share, "bf16")
    beside = b.tanh(early)
    kept = b.convert(beside, "bf16")
    after = [b.tanh(moved), b.tanh(kept)]
    for k, value in enumerate(after):
        b.output(f"y{k}", value)
    program = written(b.build())
    later = {value.name for value in after}
    flow = Flow(program, {op.out: int(op.out in later) for op in program.ops}, apart(program))
    members = [op.out for op in flow.core if op.out not in later]
    assert {moved.name, kept.name} <= set(members), "results for another phase are computed once"
    found = packing._behind(flow, members, packing._levels(flow, members))
    assert found[early.name] == 0 and found[moved.name] == packing.NOWHERE
    assert found[beside.name] == found[kept.name] == 1
