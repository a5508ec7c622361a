"""Calls of functions, written out again."""

from __future__ import annotations

import numpy as np

from certificates.plan.checking import check_plan
from certificates.plan.functions import inline
from orchestrator.evaluating.interpreter import run_plan, run_specification
from orchestrator.evaluating.scatter import random_inputs, scatter_inputs
from orchestrator.outlining.outline import expressions, outline
from tests.orchestrator.deep_plans import deep


def test_calls_written_out_again_are_the_same_program() -> None:
    flat = deep(6)
    again, known = inline(outline(flat)), dict[object, int]()
    check_plan(again)
    assert expressions(again, known) == expressions(flat, known)
    inputs = random_inputs(flat, np.random.default_rng(1))
    for name, value in run_specification(flat, inputs).items():
        np.testing.assert_array_equal(value, run_specification(again, inputs)[name])
    ranks = scatter_inputs(flat, inputs, np.random.default_rng(2))
    for ours, theirs in zip(run_plan(again, ranks), run_plan(flat, ranks), strict=True):
        assert all(np.array_equal(ours[name], value) for name, value in theirs.items())
