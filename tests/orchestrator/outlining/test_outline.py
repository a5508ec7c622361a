"""Equal layers become calls of one function: what a user of a deep plan relies on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.cli import main as show
from certificates.plan.calls import calls
from certificates.plan.checking import check_plan
from certificates.plan.functions import inline
from certificates.plan.ops import CALL
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from certificates.plan.reading import loads
from certificates.plan.writing import dump, dumps, to_json
from orchestrator.emission import Emission
from orchestrator.emit import emit
from orchestrator.evaluating.interpreter import run_plan, run_specification
from orchestrator.evaluating.scatter import random_inputs, scatter_inputs
from orchestrator.outlining import outline as outlining
from orchestrator.outlining.flow import Flow, head
from orchestrator.outlining.outline import expressions, in_order, outline
from orchestrator.outlining.stacks import spread
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores
from tests.orchestrator.deep_plans import clipped, deep, framed, ragged, rooted
from trainverify import Kind, check


@pytest.fixture(scope="module")
def flat() -> Plan:
    return deep(6)


@pytest.fixture(scope="module")
def outlined(flat: Plan) -> Plan:
    return outline(flat)


def test_layers_become_calls_and_the_file_shrinks(flat: Plan, outlined: Plan) -> None:
    assert set(outlined.functions) == {"f0"}
    for program in (outlined.specification, *(c.program for c in outlined.classes)):
        assert sorted(c.instance for c in calls(program)) == list(range(6))
    assert len(dumps(outlined)) < len(dumps(flat)) / 2
    larger = len(dumps(outline(deep(12)))) - len(dumps(outlined))
    assert larger < len(dumps(outlined)), "six more layers add calls and relations, no code"


def test_ops_in_order_are_those_of_the_outlined_plan(flat: Plan, outlined: Plan) -> None:
    """The launch-time check compares what a rank runs with the plan in this order."""
    ours, theirs = in_order(flat.classes[0].program), in_order(inline(outlined).classes[0].program)
    assert [(o.name, o.type) for o in ours.ops] == [(o.name, o.type) for o in theirs.ops]


def test_norms_of_gradients_and_their_scaling_belong_to_the_layer() -> None:
    """Else clipping costs obligations for every parameter of every layer."""
    flat = clipped(6)
    plan = outline(flat)
    for program in (plan.specification, plan.classes[0].program):
        stacks = [op for op in program.ops if op.name == "concatenate"]
        assert [len(op.ins) for op in stacks] == [6], "one part from every layer"
        assert sum(op.name == "reduce" for op in program.ops) == 1
    body = plan.functions["f0"].classes["c0"]
    assert sum(op.name == "reduce" for op in body.ops) == 2
    assert sum(op.name == "divide" for op in body.ops) == 1
    inputs = random_inputs(flat, np.random.default_rng(1))
    for name, value in run_specification(flat, inputs).items():
        np.testing.assert_allclose(value, run_specification(inline(plan), inputs)[name], rtol=1e-12)
    ranks = scatter_inputs(flat, inputs, np.random.default_rng(2))
    for ours, theirs in zip(run_plan(inline(plan), ranks), run_plan(flat, ranks), strict=True):
        assert all(np.allclose(ours[name], value, rtol=1e-12) for name, value in theirs.items())
    ours, theirs = in_order(flat.classes[0].program), in_order(inline(plan).classes[0].program)
    assert [(op.name, op.type) for op in ours.ops] == [(op.name, op.type) for op in theirs.ops]


def test_outlining_that_changes_what_is_computed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(program: Program) -> Program:
        """Squares of norms in a stack become their doubles."""
        done = spread(program)
        known = {op.out for op in program.ops}
        ops = (o if o.out in known or o.name != "multiply" else replace(o, name="add") for o in done.ops)
        return Program(done.inputs, tuple(ops), done.outputs)

    monkeypatch.setattr(outlining, "spread", wrong)
    with pytest.raises(AssertionError, match="outlining changed what the plan computes"):
        outline(clipped(6))


def ring(sent: tuple[int, int] = (0, 1), received: tuple[int, int] = (7, 8)) -> Plan:
    """Two layers' results go round a ring of two ranks, in two messages."""
    whole, rank = ProgramBuilder(), ProgramBuilder({"pp": 2})
    a = whole.input("a", "f32[4]")
    whole.output("y", whole.exponential(a) - whole.tanh(a))
    x = rank.input("a", "f32[4]")
    other = rank.axis_index("pp").scale(-1) + 1
    made = rank.exponential(x), rank.tanh(x)
    for number, which in zip((7, 8), sent, strict=True):
        rank.send(made[which], number, pp=other)
    first, second = (rank.recv("f32[4]", number, pp=other) for number in received)
    rank.output("y", first - second)
    return build_plan(
        name="ring", mesh={"pp": 2}, specification=whole.build(), classes=rank.build(),
        inputs={"a": {}}, outputs={"y": {}}, given=("a",),
    )  # fmt: skip


@pytest.mark.parametrize("change", [{"sent": (1, 0)}, {"sent": (0, 0)}, {"received": (8, 7)}])
def test_messages_of_other_values_are_another_program(change: dict[str, tuple[int, int]]) -> None:
    known: dict[object, int] = {}
    assert expressions(ring(), known) == expressions(ring(), known) != expressions(ring(**change), known)


def test_layers_that_send_or_receive_are_not_one_function() -> None:
    """A function has no messages, and each message is one of its channel."""
    ops = ring().classes[0].program.ops
    sends = [head(op) for op in ops if op.name == "send"]
    receives = [head(op) for op in ops if op.name == "recv"]
    assert len({*sends}) == len({*receives}) == 2
    flow = Flow(ring().classes[0].program)
    assert len({flow.token(op) for op in flow.core}) == len(flow.core)


@pytest.mark.parametrize(
    "layers, order",
    [(3, "as the specification"), (4, "reversed"), (6, "as the specification"), (6, "reversed")],
)
def test_a_clipped_update_is_proved_whatever_the_order_of_the_stack(
    layers: int, order: str, tmp_path: Path
) -> None:
    """Six norms are a stack as well as a thousand."""
    plan = outline(clipped(layers, order=order))
    assert set(plan.functions) == {"f0"}
    assert emitted(plan, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED


def test_a_plan_whose_calls_were_written_out_is_outlined_the_same_way() -> None:
    """Stacks that were grouped once are not grouped again."""
    plan = outline(clipped(6))
    assert dumps(outline(inline(plan))) == dumps(plan)


@pytest.mark.parametrize("wrong", ["half", "sum", "layer"])
def test_a_wrong_norm_is_refuted(wrong: str, tmp_path: Path) -> None:
    """A replicated parameter counted twice, a mesh axis left out, one layer's norm taken for another's."""
    assert emitted(outline(clipped(6, wrong)), tmp_path / "b").exit_code == 1
    assert check(tmp_path / "b").kind is Kind.REFUTED


def test_clipping_adds_a_few_stages_for_each_layer(tmp_path: Path) -> None:
    six = emitted(outline(clipped(6)), tmp_path / "six")
    twelve = emitted(outline(clipped(12)), tmp_path / "twelve")
    assert twelve.stages - six.stages <= 6 * 12
    assert twelve.obligations - six.obligations <= 6 * 4


def test_a_plan_with_functions_is_read_back(outlined: Plan) -> None:
    assert loads(dumps(outlined)) == outlined


def test_outlining_twice_changes_nothing(outlined: Plan) -> None:
    assert outline(outlined) is outlined


@pytest.mark.parametrize(("cast", "first"), [("plan", 0), ("both", 1)])
def test_a_layer_that_is_given_a_cast_is_one_of_them(cast: str, first: int, tmp_path: Path) -> None:
    """The first or last of a chain, such as a backward that begins at the head: else it is proved apart."""
    flat = deep(6, cast=cast)
    plan = outline(flat)
    for program in (plan.specification, plan.classes[0].program):
        assert sorted(c.instance for c in calls(program)) == list(range(first, 6))
        assert first or {op.name for op in program.ops} <= {CALL, "convert"}
    again, known = inline(plan), dict[object, int]()
    assert expressions(again, known) == expressions(flat, known)
    assert emitted(plan, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED


def test_a_layer_that_does_something_else_is_none_of_them() -> None:
    """The first one lacks its reduction."""
    plan = outline(deep(6, wrong=0, cast="plan"))
    assert [sorted(c.instance for c in calls(c.program)) for c in plan.classes] == [[1, 2, 3, 4, 5]]


def test_rank_classes_may_gather_each_by_itself(tmp_path: Path) -> None:
    """Uneven shards: what they gather is not of one type, and so not one rendezvous in the function."""
    flat = ragged(4)
    plan = outline(flat)
    meets = [[op.integer("seq") for op in p.ops if op.name == "all_gather"]
             for p in plan.functions["f0"].classes.values()]  # fmt: skip
    assert meets == [[0], [1]]
    assert emitted(plan, tmp_path / "b").exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED


def test_an_all_gather_stands_before_its_first_use() -> None:
    """Prefetched parameters belong to the layer that needs them."""
    b = ProgramBuilder({"d": 2})
    x, w = b.input("x", "f32[2]"), b.input("w", "f32[2]")
    gathered = b.all_gather(w, "d")
    y = b.exponential(b.tanh(x))
    b.output("y", b.tanh(gathered).sum(0) + y.sum(0))
    order = [op.name for op in Flow(b.build()).core]
    assert order == ["tanh", "exponential", "all_gather", "tanh", "reduce", "reduce", "add"]


# --- proofs ----------------------------------------------------------------------------------------------


def emitted(plan: Plan, folder: Path) -> Emission:
    return emit(plan, folder, witness_seconds=20)


@pytest.fixture(scope="module")
def bundle(outlined: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deep") / "bundle"
    assert emitted(outlined, folder).exit_code == 0
    return folder


def test_every_output_is_proved_and_the_checker_agrees(bundle: Path) -> None:
    assert check(bundle).kind is Kind.PROVED


def test_without_solving_all_obligations_are_written(outlined: Plan, tmp_path: Path) -> None:
    done = emit(outlined, tmp_path / "b", solve=False)
    assert done.exit_code == 0 and done.verdict.startswith("UNSOLVED: 7 of 7 outputs")
    assert check(tmp_path / "b").kind is Kind.PROVED


def everywhere(_plan: Plan) -> bool:
    return True


#: Plans with functions: layers, and for some also sections, which have guesses of their own to choose from.
RIGHT = {
    "cast": lambda: outline(deep(4, cast="plan")),
    "ragged": lambda: outline(ragged(4)),
    "clipped": lambda: outline(clipped(4)),
    "clipped, sections": lambda: outline(clipped(4), everywhere),
    "framed": lambda: outline(framed(3)),
    "framed, sections": lambda: outline(framed(3), everywhere),
    "rooted": lambda: outline(rooted(3)),
}
WRONG = {
    "a layer lacks its sum": lambda: outline(deep(6, wrong=5)),
    "a section lacks its sum": lambda: outline(deep(6, wrong=5), everywhere),
    "half": lambda: outline(clipped(4, "half"), everywhere),
    "sum": lambda: outline(clipped(4, "sum"), everywhere),
    "layer": lambda: outline(clipped(4, "layer")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_was_written_without_solving_is_proved_by_whoever_solves_it(name: str, tmp_path: Path) -> None:
    """No solver told wrong guesses from right ones: a wrong one would be an obligation that is not unsat."""
    assert emit(RIGHT[name](), tmp_path / "b", solve=False).exit_code == 0
    assert check(tmp_path / "b").kind is Kind.PROVED


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_noticed_without_solving(name: str, tmp_path: Path) -> None:
    assert emit(WRONG[name](), tmp_path / "b", solve=False, witness_seconds=20).exit_code == 1
    assert check(tmp_path / "b").kind is Kind.REFUTED


def test_one_lemma_serves_all_layers(bundle: Path, flat: Plan) -> None:
    proof = json.loads((bundle / "data/proof.json").read_text())
    assert len(proof["lemmas"]) <= 2, "the first layer may stand in other relations than the others"
    assert sum(s["kind"] == "call" for s in proof["stages"]) == 6
    engine = Engine(flat, Cores())
    engine.relate()
    for claims in engine.claims():
        for number in claims:
            engine.prove(number)
    alone = engine.proof([n for c in engine.claims() for n in c])
    assert len(proof["stages"]) + len(proof["lemmas"][0]["stages"]) < alone.size[1]


def test_functions_and_lemmas_are_shown_to_people(bundle: Path, outlined: Plan, tmp_path: Path) -> None:
    dump(outlined, tmp_path / "plan.json")

    def shown(*words: str) -> str:
        done = CliRunner().invoke(show, words)
        assert done.exit_code == 0, done.output
        return done.output

    whole = shown(str(tmp_path / "plan.json"))
    assert "function f0, called 6 times: ops" in whole and "= call f0 3 (" in whole
    assert "function f0, class c0 {" in shown(str(tmp_path / "plan.json"), "--function", "f0")
    assert "lemma 0 about function f0" in shown(str(bundle)) and "call: f0 5, by lemma" in shown(str(bundle))
    assert "proves fact" in shown(str(bundle), "--stage", "0.1")
    for words, reason in (
        (("--stage", "7.0"), "no lemma 7"),
        (("--stage", "0.x"), "0.x is no stage"),
        (("--function", "g"), "no function g; the plan has f0"),
    ):
        done = CliRunner().invoke(show, [str(bundle), *words])
        assert done.exit_code == 2 and reason in done.output


def test_stages_do_not_grow_with_layers(bundle: Path, tmp_path: Path) -> None:
    emitted(outline(deep(12)), tmp_path / "b")
    few, many = (json.loads((b / "data/proof.json").read_text()) for b in (bundle, tmp_path / "b"))
    assert sum(len(m["stages"]) for m in few["lemmas"]) == sum(len(m["stages"]) for m in many["lemmas"])
    sizes = [len(list((b / "data/obligations").iterdir())) for b in (bundle, tmp_path / "b")]
    assert sizes[0] == sizes[1]


def test_a_function_that_is_wrong_is_refuted_in_every_layer(outlined: Plan, tmp_path: Path) -> None:
    """A body without its reduction: the verdict speaks of the plan, whichever way it is written."""
    function = outlined.functions["f0"]
    body = function.classes["c0"]
    reduction = next(op for op in body.ops if op.name == "all_reduce" and op.text("group") == "tp")
    ops = tuple(
        replace(op, ins=tuple(reduction.ins[0] if v == reduction.out else v for v in op.ins))
        for op in body.ops
    )
    broken = replace(function, classes={"c0": replace(body, ops=ops)})
    done = emitted(replace(outlined, functions={"f0": broken}), tmp_path / "b")
    assert done.exit_code == 1
    assert {v.verdict for v in done.verdicts} == {"REFUTED", "UNKNOWN"}
    assert check(tmp_path / "b").kind is Kind.REFUTED


def test_one_wrong_layer_among_equal_ones_is_refuted_where_it_shows(tmp_path: Path) -> None:
    plan = outline(deep(6, wrong=5))
    done = emitted(plan, tmp_path / "b")
    verdicts = {v.plan: v.verdict for v in done.verdicts}
    assert all(verdicts[f"norms.layers.{k}"] == "PROVED" for k in range(5))
    assert sorted({verdicts["y"], verdicts["norms.layers.5"]}) in (["REFUTED", "UNKNOWN"], ["REFUTED"])
    assert check(tmp_path / "b").kind is Kind.REFUTED


def test_a_call_with_another_layers_weight_is_refuted(outlined: Plan, tmp_path: Path) -> None:
    """Facts about the operands are the same for every layer; which tensors they are is not."""
    cls = outlined.classes[0]
    swapped = {"params.layers.2.w": "params.layers.3.w"}
    ops = tuple(
        replace(op, ins=tuple(swapped.get(v, v) for v in op.ins))
        if op.name == CALL and op.integer("instance") == 2
        else op
        for op in cls.program.ops
    )
    plan = replace(outlined, classes=(replace(cls, program=replace(cls.program, ops=ops)),))
    check_plan(plan)
    done = emitted(plan, tmp_path / "b")
    verdicts = {v.plan: v.verdict for v in done.verdicts}
    assert verdicts["norms.layers.1"] == "PROVED"
    assert "PROVED" not in {verdicts[f"norms.layers.{k}"] for k in range(2, 6)}
    assert check(tmp_path / "b").kind is Kind.REFUTED


def test_a_plan_without_functions_looks_as_before(flat: Plan) -> None:
    assert "functions" not in to_json(flat)


@pytest.mark.parametrize("parts,summed", [(9, False), (9, True), (8, True)])
def test_a_flat_buffer_of_parameters_is_not_handed_over(parts: int, summed: bool) -> None:
    """Nothing could be said of it as a whole; a long one of computed values is handed over."""
    b = ProgramBuilder()
    xs = [b.input(f"params.{k}", "f32[2,3]") for k in range(parts)]
    flat = b.concatenate([b.tanh(x).reshape(6) if summed else x.reshape(6) for x in xs], 0)
    b.output("y", b.tanh(flat))
    core = [op.name for op in Flow(b.build()).core]
    assert ("concatenate" in core) == (summed and parts == 9)
