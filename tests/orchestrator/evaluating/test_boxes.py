"""Box evaluation agrees with the dense interpreter on every element, over the whole op table."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.plan.plan import Plan
from certificates.plan.program import Program
from orchestrator.errors import EvaluationError
from orchestrator.evaluating import boxes, grids, interpreter
from orchestrator.evaluating.forms import Form, Split
from orchestrator.evaluating.network import Expansion, Network, Node
from orchestrator.refuting import scenarios, search
from tests.corpus.programs import random_blocks, random_program


def dense(cuts: list[tuple[int, ...]], values: list[Any]) -> np.ndarray[Any, Any]:
    """A block-constant tensor in full."""
    block = np.asarray([float(v) if isinstance(v, Fraction) else v for v in values])
    block = block.reshape([len(c) - 1 for c in cuts])
    for axis, c in enumerate(cuts):
        block = block.repeat(np.diff(c), axis=axis)
    return block


def expand_alone(program: Program, blocks: Any) -> tuple[Network, Expansion]:
    """A specification without a plan."""
    network = Network()

    def spec_input(name: str, type_: Any) -> int:
        cuts, values = blocks[name]
        numbers = tuple(float(v) if isinstance(v, Fraction) else v for v in values)
        return network.add(Node("block", (), (tuple(cuts), numbers), type_.sort, type_.shape))

    def no_input(cls: str, rank: int, name: str, type_: Any) -> int:
        raise EvaluationError("there is no plan")

    plan: Any = type("Alone", (), {"specification": program, "classes": (), "by_class": {}})()
    return network, Expansion(plan, network, spec_input, no_input)


def in_full(parts: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """The dense tensor that parts over identity forms describe."""
    out = np.full(shape, 77, dtype=dtype)
    for olds, sizes, (grid,) in parts:
        grid = grids.flattened(grid, sizes)
        for at in itertools.product(*map(range, sizes)):
            cell = tuple(
                next(i for i, (lo, hi) in enumerate(itertools.pairwise(cuts)) if lo <= at[v] < hi)
                for v, cuts in grid.axes
            )
            index = tuple(f[0] + sum(c * at[v] for v, c in f[1]) for f in olds)
            out[index] = grid.data[cell]
    return out


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_agrees_with_the_interpreter(seed: int) -> None:
    rng = random.Random(seed)
    program = random_program(rng)
    blocks = random_blocks(program, rng)
    values = interpreter.evaluate(program, {n: dense(c, v) for n, (c, v) in blocks.items()})
    network, expansion = expand_alone(program, blocks)
    evaluator = boxes.Evaluator(network)
    for name, type_ in program.types().items():
        node = expansion.value(-1, name)
        identity: list[Form] = [(0, ((d, 1),)) for d in range(len(type_.shape))]
        parts = evaluator.parts([(node, identity)], type_.shape)
        mine = in_full(parts, type_.shape, values[name].dtype)
        np.testing.assert_allclose(mine, values[name], rtol=1e-9, atol=1e-9, err_msg=f"{seed} {name}")
        corner = tuple(n - 1 for n in type_.shape)
        want = values[name][corner].item()
        assert evaluator.element(node, corner) == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_whole_plan_agrees_at_every_rank(any_plan: Plan) -> None:
    """Ranks, collectives and the input relation: box evaluation of claimed facts finds no difference."""
    for seed in range(3):
        scenario = scenarios.Scenario(scenarios.random_inputs(any_plan, random.Random(seed)))
        assert list(search.differences(any_plan, scenario)) == []


def test_regrouping_that_does_not_nest() -> None:
    """64 x 36 rows read as 18 x 128: neither factorisation refines the other."""
    network = Network()
    block = network.add(Node("block", (), (((0, 700, 2304),), (1.0, 2.0)), "Real", (2304,)))
    wide = network.add(Node("reshape", (block,), (), "Real", (64, 36)))
    other = network.add(Node("reshape", (wide,), (), "Real", (18, 128)))
    evaluator = boxes.Evaluator(network)
    total = network.add(Node("reduce", (other,), ("add", (0, 1)), "Real", ()))
    assert evaluator.element(total, ()) == 700 + 2 * (2304 - 700)
    assert evaluator.element(other, (5, 60)) == 2.0 and evaluator.element(other, (5, 59)) == 1.0


def test_cost_follows_blocks_not_sizes() -> None:
    """A product of 128256 x 16384 by 16384 x 53248, block-constant, is a handful of cells."""
    network = Network()
    x = network.add(Node("block", (), (((0, 7, 128256), (0, 16384)), (1.0, 2.0)), "Real", (128256, 16384)))
    y = network.add(Node("block", (), (((0, 5, 16384), (0, 53248)), (1.0, -1.0)), "Real", (16384, 53248)))
    dot = network.add(Node("dot_general", (x, y), ((), (), (1,), (0,)), "Real", (128256, 53248)))
    grid = boxes.Evaluator(network).read(dot, [(0, ((0, 1),)), (0, ((1, 1),))], (128256, 53248))
    assert grid.axes == ((0, (0, 7, 128256)),)
    assert grid.data.tolist() == [5 - 16379, 2 * (5 - 16379)]


def test_a_position_that_must_be_regrouped_is_reported() -> None:
    network = Network()
    block = network.add(Node("block", (), (((0, 4), (0, 3, 6)), (1.0, 2.0)), "Real", (4, 6)))
    flat = network.add(Node("reshape", (block,), (), "Real", (24,)))
    with pytest.raises(Split):
        boxes.Evaluator(network).read(flat, [(0, ((0, 1),))], (24,))
