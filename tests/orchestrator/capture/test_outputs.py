"""What only one side leaves is refused by name and line; no PyTorch program is run."""

from __future__ import annotations

from collections.abc import Mapping

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Draft
from orchestrator.capture.errors import CaptureError, DefinitionError, LayoutError
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.outputs import differences, kept

REAL = TensorType("f32", (2,))


def leaving(outputs: Mapping[str, int]) -> RankProgram:
    """A program that reads ``params.w`` and makes each output in a line of its own."""
    drafts = [
        Draft(f"%{i}", "negate", ("params.w",), REAL, (), ("step.py", line, "step"))
        for i, line in enumerate(outputs.values())
    ]
    return RankProgram(
        {"params.w": REAL, "opt.w.m": REAL},
        tuple(drafts),
        {name: f"%{i}" for i, name in enumerate(outputs)},
        (),
    )


def told(single: Mapping[str, int], ranks: Mapping[str, int]) -> list[tuple[type[CaptureError], str]]:
    found = differences(leaving(single), [("c0", leaving(ranks))], ("opt.bucket",))
    return [(type(e), f"{e.message}: {e.tensor} {e.frame and e.frame[1]}") for e in found]


def test_the_same_names_are_no_difference() -> None:
    assert told({"params.w": 1, "loss": 2}, {"loss": 7, "params.w": 9}) == []


def test_a_gradient_that_is_never_zeroed_is_named_with_the_line_that_wrote_it() -> None:
    found = differences(leaving({"params.w": 1}), [("c0", leaving({"params.w": 1, "grads.w": 5}))], ())
    assert [str(e) for e in found] == [
        "layout: ranks leave a gradient that the next step adds to; the single-device step leaves none "
        "(tensor grads.w)\n  step.py:5 in step\n"
        "  write instead: optimizer.zero_grad() in the step of the ranks too"
    ]


def test_states_and_results_of_the_ranks_only_are_two_problems_and_buckets_are_none() -> None:
    assert told({"params.w": 1}, {"params.w": 1, "opt.bucket": 2, "buffers.n": 3, "extra": 4}) == [
        (LayoutError, "ranks change a state that the single-device step does not have: buffers.n 3"),
        (DefinitionError, "ranks return an output that the single-device step does not have: extra 4"),
    ]


def test_a_state_that_ranks_read_and_do_not_change_is_named_with_the_line_of_the_single_device() -> None:
    assert told({"params.w": 1, "opt.w.m": 2, "loss": 3}, {"params.w": 1}) == [
        (LayoutError, "the single-device step changes a state that class c0 does not: opt.w.m 2")
    ]


def test_each_class_is_compared() -> None:
    single, bad = leaving({"params.w": 1}), leaving({"params.w": 1, "grads.w": 5})
    assert len(differences(single, [("c0", single), ("c1", bad), ("c2", bad)], ())) == 2


def test_a_buffer_that_some_program_writes_is_an_output_of_all() -> None:
    """``DistributedDataParallel`` broadcasts buffers that nobody changes."""
    given = {"params.w": REAL, "buffers.mask": REAL}
    draft = Draft("%0", "negate", ("params.w",), REAL, (), None)
    still = RankProgram(given, (draft,), {"params.w": "%0"}, ())
    sent = RankProgram(given, (draft,), {"params.w": "%0", "buffers.mask": "%0", "buffers.own": "%0"}, ())
    single, first, second = kept(still, [sent, still])
    assert single.outputs == second.outputs == {"params.w": "%0", "buffers.mask": "buffers.mask"}
    assert first.outputs == sent.outputs
    assert [e.tensor for e in differences(single, [("c0", first)], ())] == ["buffers.own"]
