"""Running a trace through the table: results, writes, what is refused and where it is told."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.errors import (
    AliasingError,
    CaptureError,
    ClosureError,
    LoweringError,
    UnsupportedOpError,
)
from orchestrator.capture.lowering import driver, table
from orchestrator.capture.lowering.table import Rule

x = torch.randn(3, 4, dtype=torch.float64)


def replaced(monkeypatch, name: str, lower) -> None:
    monkeypatch.setitem(table.LOWERINGS, name, Rule(lower))


def test_a_lowering_with_more_results_than_the_op_is_refused(lowered, monkeypatch) -> None:
    replaced(monkeypatch, "aten.exp", lambda c, a: [a, a])
    with pytest.raises(LoweringError, match="gives 2 results for 1"):
        lowered(torch.exp, x)


def test_a_result_that_a_lowering_does_not_give_is_refused_only_if_it_is_used(lowered, monkeypatch) -> None:
    replaced(
        monkeypatch,
        "aten.aminmax",
        lambda c, a, dim=None, keepdim=False: [c.b.reduce(a, (0, 1), "min"), None],
    )
    assert lowered(lambda a: torch.aminmax(a)[0], x).outputs
    with pytest.raises(LoweringError, match="result 1 of the op has no lowering"):
        lowered(lambda a: torch.aminmax(a)[1], x)


def test_an_op_that_writes_what_it_reads_elsewhere_is_refused(lowered) -> None:
    with pytest.raises(AliasingError, match="PyTorch's order"):
        lowered(lambda a: a.clone().as_strided((2, 4), (4, 1)).add_(1) if False else shifted(a.clone()), x)


def shifted(a: torch.Tensor) -> torch.Tensor:
    a[1:].add_(a[:-1])
    return a


def test_a_tensor_from_outside_is_refused(lowered) -> None:
    with pytest.raises(ClosureError, match="no parameter, buffer, batch input"):
        lowered(lambda a, b: a + b, x, outside=[torch.randn(3, 4, dtype=torch.float64)])


def test_dead_code_goes_and_values_are_numbered_anew(lowered) -> None:
    def step(a):
        torch.lgamma(a)
        return a.exp() * 2

    program = lowered(step, x)
    assert [d.out for d in program.drafts] == ["%0", "%1", "%2"] and program.outputs == {"y0": "%2"}


@torch.library.custom_op("test_driver::log", mutates_args=())
def log(a: torch.Tensor) -> torch.Tensor:
    a.mul_(3.0)
    return a.sum()


@log.register_fake
def _(a: torch.Tensor) -> torch.Tensor:
    return a.new_empty(())


def test_an_op_of_another_library_is_refused_whether_or_not_its_result_is_used(lowered) -> None:
    """It says that it writes nothing, and triples a gradient."""

    def step(a: torch.Tensor) -> torch.Tensor:
        torch.ops.test_driver.log(a)
        return a * 2

    with pytest.raises(UnsupportedOpError, match="no trace knows what an op outside") as caught:
        lowered(step, x)
    assert caught.value.op == "test_driver.log.default" and caught.value.frame is not None


def test_all_problems_that_reach_an_output_are_told(lowered) -> None:
    with pytest.raises(CaptureError) as caught:
        lowered(lambda a: torch.lgamma(a) + torch.erfinv(a), x)
    assert "lgamma" in str(caught.value) and "erfinv" in str(caught.value)


def test_operands_that_are_complex_and_real_are_refused(lowered) -> None:
    with pytest.raises(LoweringError, match="complex and real"):
        lowered(lambda a: torch.view_as_real(torch.view_as_complex(a.reshape(6, 2)) * a[0, 0]), x)
    assert driver.Lowering is not None
