"""No argument and no result of an op is passed over in silence."""

from __future__ import annotations

import dis
import inspect
from typing import Any

import pytest
import torch

from orchestrator.capture.errors import AliasingError, LoweringError
from orchestrator.capture.lowering import table
from orchestrator.capture.lowering.arguments import bind, parameters
from orchestrator.capture.lowering.table import LOWERINGS, Rule

x = torch.randn(3, 4, dtype=torch.float64)


@pytest.fixture
def rule(monkeypatch) -> Any:
    """Replaces the rule of an op."""

    def replace(op: str, lower: Any, *ignores: str) -> None:
        monkeypatch.setitem(table.LOWERINGS, op, Rule(lower, frozenset(ignores)))

    return replace


def test_a_lowering_that_knows_only_the_usual_call_refuses_others(lowered, rule) -> None:
    rule("aten.sum", lambda c, x: c.b.reduce(x, (0, 1), "add"))
    lowered(lambda a: a.sum(), x)
    with pytest.raises(LoweringError, match=r"the argument dim=\[1\] has no lowering") as caught:
        lowered(lambda a: a.sum(1), x)
    assert caught.value.op == "aten.sum.dim_IntList"


def test_an_option_by_keyword_is_no_exception(lowered, rule) -> None:
    rule("aten.gelu", lambda c, x: x)
    lowered(torch.nn.functional.gelu, x)
    with pytest.raises(LoweringError, match="the argument approximate='tanh' has no lowering"):
        lowered(lambda a: torch.nn.functional.gelu(a, approximate="tanh"), x)


def test_an_option_with_the_default_of_the_schema_says_nothing() -> None:
    rule = Rule(lambda c, x: x)
    assert bind("aten.gelu.default", rule, ("x",), {"approximate": "none"}) == {"x": "x"}


def test_a_form_of_an_op_with_fewer_arguments_is_refused(lowered, rule) -> None:
    rule("aten.sum", lambda c, x, dim: c.b.reduce(x, dim, "add"))
    with pytest.raises(LoweringError, match="nothing gives dim"):
        lowered(lambda a: a.sum(), x)


def test_a_result_that_the_lowering_does_not_give_is_an_error_where_it_is_used(lowered, rule) -> None:
    rule("aten.aminmax", lambda c, x: (c.b.reduce(x, (0, 1), "min"),))
    lowered(lambda a: torch.aminmax(a)[0], x)
    with pytest.raises(LoweringError, match="result 1 of the op has no lowering") as caught:
        lowered(lambda a: torch.aminmax(a)[1], x)
    assert caught.value.op == "aten.aminmax.default"


def test_a_lowering_with_more_results_than_the_op_is_refused(lowered, rule) -> None:
    rule("aten.exp", lambda c, x: (x, x))
    with pytest.raises(LoweringError, match="gives 2 results for 1"):
        lowered(torch.exp, x)


def test_an_out_tensor_that_is_resized_is_refused(lowered) -> None:
    with pytest.raises(AliasingError, match="out= tensor of another shape"):
        lowered(lambda a: torch.add(a, a, out=torch.zeros(2, dtype=a.dtype)), x)


@pytest.mark.parametrize("op", [op for op in sorted(LOWERINGS) if not op.startswith("_c10d_functional.")])
def test_a_lowering_uses_every_argument_that_it_takes(op: str) -> None:
    """What it takes and drops would be as silent as what it does not take; ``ignores`` says so aloud."""
    lower = LOWERINGS[op].lower
    parameters(lower)
    taken = set(list(inspect.signature(lower).parameters)[1:])
    used: set[str] = set()
    for instruction in dis.get_instructions(lower.__code__):
        if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "STORE_FAST_LOAD")):
            argument = instruction.argval
            used |= {argument} if isinstance(argument, str) else set(argument)
    assert taken <= used


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [
        ("aten._to_copy.default", "dtype", "f64"),
        ("aten._to_copy.default", "layout", torch.strided),
        ("aten._to_copy.default", "device", torch.device("cpu")),
        ("aten._to_copy.default", "pin_memory", True),
        ("aten._to_copy.default", "non_blocking", True),
        ("aten._to_copy.default", "memory_format", torch.contiguous_format),
    ],
)
def test_where_and_how_numbers_are_kept_is_nothing_that_a_lowering_has_to_know(
    op: str, name: str, value: Any
) -> None:
    """A batch that is moved to pinned memory has the same numbers."""
    assert bind(op, Rule(lambda c, x: x), ("x",), {name: value}) == {"x": "x"}


def test_an_out_tensor_is_no_argument_but_where_the_result_goes() -> None:
    rule = Rule(lambda c, x, y, *, alpha=1: x)
    given = bind("aten.add.out", rule, ("x", "y"), {"out": "z"})
    assert given == {"x": "x", "y": "y", "alpha": 1}


def test_an_op_of_a_list_is_told_by_the_name_that_was_called(lowered, rule) -> None:
    rule("aten.add", lambda c, x: x)
    with pytest.raises(LoweringError, match=r"the argument other=1\.0 has no lowering") as caught:
        lowered(lambda a: torch._foreach_add([a], 1.0)[0], x)
    assert caught.value.op == "aten._foreach_add.Scalar"
