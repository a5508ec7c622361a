"""What a user reads of a refusal: each problem once, with its op, tensors, ranks and lines."""

from __future__ import annotations

import pytest

from orchestrator.capture.errors import CaptureError, LayoutError, gathered, spoken


def test_op_tensor_and_rank_stand_behind_the_message() -> None:
    assert (
        str(CaptureError("no", op="aten.x", tensor="w", rank=3))
        == "capture: no (tensor w, op aten.x, rank 3)"
    )
    assert str(CaptureError("no")) == "capture: no"
    assert str(CaptureError("no").at_single()) == "capture: no (single device)"


def test_problems_of_one_kind_are_one_block_with_all_lines_in_order() -> None:
    lines = [CaptureError("no", rank=r, frame=("/a.py", line, "f")) for r, line in ((1, 9), (0, 4), (2, 4))]
    text = str(gathered(lines)).splitlines()
    assert text == ["capture: no (ranks 0, 1, 2)", "  /a.py:4 in f", "  and 1 more at line 9"]


def test_a_problem_without_a_line_comes_last() -> None:
    found = [CaptureError("nowhere"), LayoutError("here", frame=("/a.py", 1, "f"))]
    assert [p.message for p in gathered(found).problems()] == ["here", "nowhere"]


@pytest.mark.parametrize(("count", "more"), [(2, ""), (40, " more")])
def test_a_long_list_of_tensors_is_cut_and_counted(count: int, more: str) -> None:
    text = str(gathered([CaptureError("no", tensor=f"w{i}") for i in range(count)]))
    named = text.count("w") - text.count("write")
    if more:
        assert f"and {count - named} more" in text
    else:
        assert "more" not in text and "w0, w1" in text


def test_ops_are_called_as_a_user_calls_them() -> None:
    assert spoken("aten.cumsum.default") == "cumsum"
    assert spoken("complex.aten.exp.default") == "exp of complex numbers"
    assert spoken("plain") == "plain"
