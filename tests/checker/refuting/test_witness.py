"""Replay of witnesses: agrees with the dense interpreter, accepts differences, rejects everything else."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Partial, Shard
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.program import Program
from certificates.plan.writing import dumps
from checker.errors import Malformed, Rejected
from checker.reading.plan import read_plan
from checker.refuting.intervals import Reals
from checker.refuting.witness import Machine, Replay, element, replay
from orchestrator.evaluating import interpreter
from orchestrator.refuting import search
from tests.corpus.mutate import mutants
from tests.corpus.programs import random_blocks, random_program
from tests.corpus.run import claimed_fact


def alone(program: Program) -> Plan:
    """A plan of one rank that runs the specification itself."""
    return build_plan(
        name="alone", mesh={"dp": 1}, specification=program,
        classes=Program(program.inputs, program.ops, program.outputs), inputs={}, outputs={},
    )  # fmt: skip


def text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def document(blocks: Any, **more: Any) -> dict[str, Any]:
    inputs = {
        n: {"cuts": [list(c) for c in cuts], "values": [text(v) for v in values]}
        for n, (cuts, values) in blocks.items()
    }
    return {"output": 0, "piece": 0, "symbols": {}, "junk": "3", "inputs": inputs, **more}


def dense(cuts: Any, values: Any) -> np.ndarray[Any, Any]:
    block = np.asarray([float(v) if isinstance(v, Fraction) else v for v in values])
    block = block.reshape([len(c) - 1 for c in cuts])
    for axis, c in enumerate(cuts):
        block = block.repeat(np.diff(c), axis=axis)
    return block


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_encloses_the_interpreter(seed: int) -> None:
    rng = random.Random(seed)
    program = random_program(rng)
    blocks = random_blocks(program, rng)
    values = interpreter.evaluate(program, {n: dense(c, v) for n, (c, v) in blocks.items()})
    plan = read_plan(dumps(alone(program)))
    machine = Machine(plan, document(blocks)["inputs"], Fraction(3), Reals(128))
    for name, type_ in program.types().items():
        for _ in range(4):
            index = tuple(rng.randrange(n) for n in type_.shape)
            mine, want = element(machine.grids[machine.number(-1, name)], index), values[name][index].item()
            if mine is None:
                continue  # a comparison of equal irrational numbers is never decided
            if type_.sort != "Real":
                assert mine == want, f"{seed} {name} {index}"
                continue
            ends = machine.reals.ends(mine)
            assert ends is not None and ends[1] - ends[0] < Fraction(1, 1 << 60)
            assert float(ends[0]) == pytest.approx(want, rel=1e-9, abs=1e-9), f"{seed} {name} {index}"


def refuted(plan: Plan, mutant: Plan) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Replay]]:
    """A witness against a mutant, and its replay."""
    witness = search.search(mutant, budget=20.0)
    assert witness is not None
    checked = read_plan(dumps(mutant))

    def again(item: dict[str, Any]) -> Replay:
        return replay(checked, claimed_fact(checked, item["output"], item["piece"]), item)

    return witness.to_json(), again


@pytest.fixture(scope="module")
def lost_sum(request: pytest.FixtureRequest) -> Any:
    """The hand-written MLP with one all_reduce dropped."""
    plan = request.getfixturevalue("mlp")
    mutant = next(m for m in mutants(plan) if m.operator == "drop" and "all_reduce" in m.where)
    return refuted(plan, mutant.build())


def test_a_wrong_plan_is_refuted(lost_sum: Any) -> None:
    item, again = lost_sum
    shown = again(item)
    assert shown.plan is not None
    assert shown.plan[1] < shown.spec[0] or shown.spec[1] < shown.plan[0]
    assert shown.symbols == item["symbols"]


def test_a_right_plan_is_not(any_plan: Plan) -> None:
    """The same inputs show nothing on plans that are right, partial outputs and uneven classes included."""
    inputs = search.random_inputs(any_plan, random.Random(5))
    checked = read_plan(dumps(any_plan))
    blocks = {n: (b.cuts, b.values) for n, b in inputs.items()}
    for output in range(len(any_plan.outputs)):
        fact = claimed_fact(checked, output, 0)
        symbols = {n: (lo + hi) // 2 for n, lo, hi in fact.symbols}
        with pytest.raises(Rejected, match=r"not shown to differ|equal or undefined"):
            replay(checked, fact, document(blocks, output=output, symbols=symbols))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("symbols", "dp"), 2, "no integer in"),
        (("symbols", "z9"), 0, "unknown member"),
        (("junk",), "1.5", "no rational"),
        (("inputs", "params.w1", "cuts", 0), [0, 3], "bad cuts"),
        (("inputs", "params.w1", "cuts", 0), [0, 2, 2, 4], "bad cuts"),
        (("inputs", "params.w1", "cuts", 0), [0, 5], "no integer in"),
        (("inputs", "params.w1", "values"), ["1"], "a list of"),
        (("inputs", "params.w1", "values", 0), "2/4", "lowest terms"),
        (("inputs", "params.w1"), {"cuts": []}, "missing"),
        (("inputs", "params.w3"), {"cuts": [], "values": ["1"]}, "unknown member"),
        (("surplus",), 1, "unknown member"),
    ],
)
def test_malformed_documents(lost_sum: Any, path: tuple[Any, ...], value: Any, message: str) -> None:
    item, again = lost_sum
    item = copy.deepcopy(item)
    place = item
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(Malformed, match=message):
        again(item)


def test_a_missing_input_is_malformed(lost_sum: Any) -> None:
    item, again = lost_sum
    item = copy.deepcopy(item)
    del item["inputs"]["params.w1"]
    with pytest.raises(Malformed, match=r"params\.w1 is missing"):
        again(item)


def test_integers_keep_to_their_range() -> None:
    spec = ProgramBuilder()
    spec.output("y", spec.gather(spec.input("e", "f32[10]"), spec.input("t", "i64[3]")))
    b = ProgramBuilder({"dp": 2})
    e, t = b.input("e", "f32[10]"), b.input("t", "i64[3]")
    b.output("y", b.gather(e, b.maximum(t, b.constant(1, "i64[3]"))))
    plan = build_plan(
        name="clamped", mesh={"dp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"e": {}, "t": {}}, outputs={"y": {}}, ranges={"t": (0, 10)},
    )  # fmt: skip
    item, again = refuted(plan, plan)
    assert "0" in item["inputs"]["t"]["values"]
    again(item)
    for wrong in ("10", "-1", "1/2"):
        bad = copy.deepcopy(item)
        bad["inputs"]["t"]["values"][0] = wrong
        with pytest.raises(Malformed):
            again(bad)


def partial_plan(pieces_twice: bool = False, coef: Fraction = Fraction(1)) -> Plan:
    """A partial input, summed by the plan; its output is claimed to be the specification's ``scale * x``."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[4]") * 3)
    b = ProgramBuilder({"dp": 2})
    b.output("y", b.all_reduce(b.input("x", "f32[4]"), "dp") * 3)
    plan = build_plan(
        name="partial", mesh={"dp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": {"dp": Partial()}}, outputs={"y": {}},
    )  # fmt: skip
    relation = replace(plan.inputs[0], coef=coef)
    return replace(plan, inputs=(relation, relation) if pieces_twice else (relation,))


def value_of(plan: Plan, index: int) -> tuple[Fraction, Fraction]:
    checked = read_plan(dumps(plan))
    item = document({"x": ([(0, 1, 4)], [Fraction(5), Fraction(7)])}, symbols={"dp": 0, "z0": index})
    try:
        shown = replay(checked, claimed_fact(checked, 0, 0), item)
    except Rejected:
        return Fraction(0), Fraction(0)
    assert shown.plan is not None
    return shown.plan[0], shown.spec[0]


def test_partial_inputs_follow_the_relation() -> None:
    assert value_of(partial_plan(), 0) == (0, 0), "5 + 0 is 5: nothing to show"
    assert value_of(partial_plan(coef=Fraction(2)), 3) == (42, 21), "the summands add up to coef * x"


def test_layouts_that_cannot_be_inverted_are_rejected() -> None:
    plan = partial_plan()
    overlap = Piece("c0", (2,), (Affine.symbol("z0"),), (Affine.symbol("z0") + 1,))
    name = plan.inputs[0].pieces[0].cls
    both = Relation("x", "x", (plan.inputs[0].pieces[0], replace(overlap, cls=name)))
    checked = read_plan(dumps(replace(plan, inputs=(both,))))
    item = document({"x": ([(0, 4)], [Fraction(5)])}, symbols={"dp": 0, "z0": 0})
    with pytest.raises(Rejected, match="two pieces may give"):
        replay(checked, claimed_fact(checked, 0, 0), item)


def test_relations_that_constrain_the_specification_are_rejected() -> None:
    """Two tensors tied to one plan input, which the output does not read: the tie still binds."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[4]") - spec.input("t", "f32[4]"))
    b = ProgramBuilder({"dp": 2})
    b.input("both", "f32[4]")
    b.output("y", b.constant(0, "f32[4]"))
    plan = build_plan(
        name="tied",
        mesh={"dp": 2},
        specification=spec.build(),
        classes=b.build(),
        inputs={},
        outputs={"y": {}},
    )
    piece = replace(plan.outputs[0].pieces[0])
    for tied, pattern in ((("x", "t"), "two pieces may give"), (("x",), None)):
        whole = replace(plan, inputs=tuple(Relation(name, "both", (piece,)) for name in tied))
        checked = read_plan(dumps(whole))
        blocks = {"x": ([(0, 4)], [Fraction(5)]), "t": ([(0, 4)], [Fraction(2)])}
        item = document(blocks, symbols={"dp": 0, "z0": 0})
        if pattern is None:
            assert replay(checked, claimed_fact(checked, 0, 0), item).spec == (3, 3)
            continue
        with pytest.raises(Rejected, match=pattern):
            replay(checked, claimed_fact(checked, 0, 0), item)


def test_a_root_of_a_negative_number_refutes() -> None:
    spec = ProgramBuilder()
    x = spec.input("x", "f32[2]")
    spec.output("y", spec.sqrt(x * x + 1))
    b = ProgramBuilder({"dp": 2})
    x = b.input("x", "f32[1]")
    b.output("y", b.sqrt(-(x * x) - 1))
    plan = build_plan(
        name="root", mesh={"dp": 2}, specification=spec.build(), classes=b.build(),
        inputs={"x": {"dp": Shard(0)}}, outputs={"y": {"dp": Shard(0)}},
    )  # fmt: skip
    item, again = refuted(plan, plan)
    assert again(item).plan is None


def test_it_must_differ_at_the_named_element(lost_sum: Any) -> None:
    """Another output, where the mutant is right, does not serve."""
    item, again = lost_sum
    with pytest.raises(Rejected):
        again({**copy.deepcopy(item), "inputs": {
            n: {"cuts": [[0, b["cuts"][d][-1]] for d in range(len(b["cuts"]))], "values": ["0"]}
            for n, b in item["inputs"].items()
        }})  # fmt: skip
