"""Views of memory in one form, and the slices that make microbatches."""

from __future__ import annotations

import numpy as np
import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.type_rules import check_program
from orchestrator.capture.views import added_up, composed, opened, tilings
from orchestrator.evaluating import interpreter


def test_a_view_is_a_slice_of_flat_memory_and_has_the_same_numbers() -> None:
    """Whether a step slices rows and reshapes, or slices the buffer: elements and ops are the same."""
    b = ProgramBuilder()
    x = b.input("x", "f32[6,8]")
    memory = x + x
    b.output("rows", memory[2:4])
    b.output("buffer", memory.reshape(48)[16:32].reshape(2, 8))
    b.output("twice", memory.reshape(48)[8:48].reshape(5, 8)[1:3])
    b.output("inner", memory[2:3, 2:6].reshape(4))
    b.output("columns", memory[:, 2:4])
    b.output("whole", memory.reshape(48).reshape(6, 8))
    program = b.build()
    made = composed(program)
    check_program(made)
    value = {"x": np.random.default_rng(0).normal(size=(6, 8))}
    want, got = (interpreter.evaluate(p, value) for p in (program, made))
    for name in program.outputs:
        np.testing.assert_array_equal(got[made.outputs[name]], want[program.outputs[name]])
    assert made.outputs["rows"] == made.outputs["buffer"] == made.outputs["twice"]
    assert made.outputs["whole"] == made.ops[0].out
    assert len(made.ops) == 9  # with the memory of "twice" itself


def test_views_of_the_batch_stay_as_they_are() -> None:
    b = ProgramBuilder()
    b.output("y", b.input("batch.x", "f32[6,8]")[2:4])
    assert composed(b.build()).ops == b.build().ops


@pytest.mark.parametrize(
    ("cuts", "count"),
    [
        ([(0, 2), (2, 4), (4, 6)], 3),
        ([(2, 4), (4, 6), (0, 2), (0, 2)], 3),
        ([(0, 3), (3, 6)], 2),
        ([(0, 2), (2, 4)], None),
        ([(0, 4), (2, 6)], None),
        ([(0, 5), (1, 6)], None),
        ([(0, 6)], None),
    ],
)
def test_slices_that_tile_an_entry_of_the_batch_are_microbatches(
    cuts: list[tuple[int, int]], count: int | None
) -> None:
    for name in ("batch.x", "params.x"):
        for dim in (0, 1):
            b = ProgramBuilder()
            x = b.input(name, "f32[6,6]") * 2
            for i, (lo, hi) in enumerate(cuts):
                b.output(f"y{i}", x[lo:hi] if dim == 0 else x[:, lo:hi])
            found = [len(places) for places in tilings(b.build())]
            assert found == ([count] if count is not None and name == "batch.x" else [])


def test_stacks_that_are_only_added_up_are_sums() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[3,2]")
    parts = [x * (k + 1) for k in range(4)]
    stack = b.concatenate(parts, 0)
    b.output("all", stack.sum(0, 1))
    b.output("rows", stack.sum(0))
    beside, largest, read, shown = (b.concatenate(parts[:n], 0) for n in (2, 3, 4, 2))
    b.output("beside", beside.sum(1))
    b.output("largest", b.reduce(largest, (0,), "max"))
    b.output("read", read.sum(0) + read[0:1].reshape(2))
    b.output("shown", shown)
    program = b.build()
    (only,) = added_up(program)
    made = opened(program, added_up(program))
    check_program(made)
    assert all(op.out != only for op in made.ops)
    assert sum(op.name == "concatenate" for op in made.ops) == 4
    value = {"x": np.random.default_rng(0).normal(size=(3, 2))}
    want, got = (interpreter.evaluate(p, value) for p in (program, made))
    for name in program.outputs:
        np.testing.assert_allclose(got[made.outputs[name]], want[program.outputs[name]], rtol=1e-12)


def test_a_stack_of_two_is_one_sum_of_two() -> None:
    b = ProgramBuilder()
    x = b.input("x", "f32[2]")
    b.output("y", b.concatenate([x, x * 3], 0).sum(0))
    made = opened(b.build(), added_up(b.build()))
    assert [op.name for op in made.ops if op.name in ("reduce", "add")] == ["reduce", "reduce", "add"]
    check_program(made)
