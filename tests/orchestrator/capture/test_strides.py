"""Strides that are taken for certain are those of a real tensor on a CPU; the others are known to be none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.capture import strides
from orchestrator.capture.geometry import Geometry
from orchestrator.capture.recorder import Recorder, recording
from orchestrator.capture.strides import row_major

Case = tuple[Callable[..., Any], Sequence[tuple[int, ...]]]
ROWS = torch.tensor([2, 0])
AT = torch.zeros(2, 2, 4, dtype=torch.int64)
CUBE, PLANE = (2, 3, 4), (3, 4)
#: What calls each op that is taken to follow its operands' strides by rule, or to be row-major.
CASES: dict[str, Case] = {
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "addmm": (torch.addmm, [(3, 5), (3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "new_empty": (lambda x: x.new_empty(2, 3), [CUBE]),
    "new_zeros": (lambda x: x.new_zeros(2, 3), [CUBE]),
    "new_ones": (lambda x: x.new_ones(2, 3), [CUBE]),
    "new_full": (lambda x: x.new_full((2, 3), 1.0), [CUBE]),
    "clone": (torch.clone, [CUBE]),
    "_to_copy": (lambda x: x.to(torch.float64), [CUBE]),
    "empty_like": (torch.empty_like, [CUBE]),
    "zeros_like": (torch.zeros_like, [CUBE]),
    "ones_like": (torch.ones_like, [CUBE]),
    "full_like": (lambda x: torch.full_like(x, 2.0), [CUBE]),
    "rand_like": (torch.rand_like, [CUBE]),
    "sum": (lambda x: x.sum(1), [CUBE]),
    "mean": (lambda x: x.mean(1), [CUBE]),
    "amax": (lambda x: x.amax(1), [CUBE]),
    "amin": (lambda x: x.amin(1), [CUBE]),
    "var": (lambda x: x.var(1), [CUBE]),
    "std": (lambda x: x.std(1), [CUBE]),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), [CUBE]),
    "cumsum": (lambda x: x.cumsum(1), [CUBE]),
    "any": (lambda x: (x > 0).any(1), [CUBE]),
    "all": (lambda x: (x > 0).all(1), [CUBE]),
    "cat": (lambda x, y: torch.cat((x, y), 1), [CUBE, CUBE]),
    "stack": (lambda x, y: torch.stack((x, y), 1), [CUBE, CUBE]),
    "gather": (lambda x: x.gather(1, AT), [CUBE]),
    "index_select": (lambda x: x.index_select(1, ROWS), [CUBE]),
    "embedding": (lambda x: F.embedding(ROWS, x), [PLANE]),
    "flip": (lambda x: x.flip(1), [CUBE]),
    "roll": (lambda x: x.roll(1, 1), [CUBE]),
    "constant_pad_nd": (lambda x: F.pad(x, (1, 1)), [CUBE]),
    "sort": (lambda x: x.sort(1), [CUBE]),
    "topk": (lambda x: x.topk(2, 1), [CUBE]),
    "max": (lambda x: x.max(1), [CUBE]),
    "min": (lambda x: x.min(1), [CUBE]),
    "argmax": (lambda x: x.argmax(1), [CUBE]),
    "scatter": (lambda x: x.scatter(1, AT, 1.0), [CUBE]),
    "index_add": (lambda x, y: x.index_add(1, ROWS, y), [CUBE, (2, 2, 4)]),
    "add": (torch.add, [CUBE, PLANE]),
    "where": (lambda x, y: torch.where(x > 0, x, y), [CUBE, CUBE]),
    "silu": (F.silu, [CUBE]),
    "gelu": (F.gelu, [CUBE]),
    "addcmul": (torch.addcmul, [CUBE, CUBE, PLANE]),
}


class Seen(TorchDispatchMode):  # type: ignore[misc]
    """Strides of what each op makes, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: dict[str, list[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [t.stride() for t in (out if isinstance(out, tuple | list) else [out])]
        self.strides.setdefault(func._schema.name.removeprefix("aten::"), []).append(made)
        return out


def laid_out(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], order: int) -> Seen:
    """Operands whose elements are counted in memory in this order of their dimensions."""
    given = []
    for shape in shapes:
        perm = list(permutations(range(len(shape))))[order % (len(shape) * (len(shape) - 1))]
        back = sorted(range(len(shape)), key=lambda d: perm[d])
        given.append(torch.rand([shape[d] for d in perm]).permute(back))
    with Seen() as seen:
        function(*given)
    return seen


def test_every_op_of_the_rules_is_tried() -> None:
    assert CASES.keys() - {"add", "where", "silu", "gelu", "addcmul"} == strides._ROW_MAJOR | strides._BY_RULE


@pytest.mark.parametrize("name", CASES)
def test_a_real_tensor_lies_as_the_rule_says(name: str) -> None:
    function, shapes = CASES[name]
    for order in range(6):
        with FakeTensorMode(allow_non_fake_inputs=True):
            expected = laid_out(function, shapes, order).strides
        seen = laid_out(function, shapes, order).strides
        assert name in seen and seen[name] == expected[name], order
        if name in strides._ROW_MAJOR:
            rows = [torch.empty(shape).stride() for shape in ((3, 5), (2, 3, 5), (2, 3))]
            assert all(stride in rows for made in seen[name] for stride in made)


def uncertain(made: Callable[[Tensor], Tensor]) -> bool:
    """Is it unknown how a tensor lies that a step makes of a row-major one?"""
    recorder = Recorder()
    with FakeTensorMode(), warnings.catch_warnings(), recording(recorder):
        warnings.simplefilter("ignore")
        found = made(torch.zeros(2, 3, 4, 4))
    return found.untyped_storage()._cdata in recorder.strides.uncertain


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda x: F.logsigmoid(x), False),
        (lambda x: F.logsigmoid(x.transpose(1, 2)), True),
        (lambda x: F.logsigmoid(x.transpose(1, 2)) * 2, True),
        (lambda x: F.logsigmoid(x.transpose(1, 2)).unsqueeze(0), True),
        (lambda x: F.logsigmoid(x.transpose(1, 2)).clone(memory_format=torch.contiguous_format), False),
        (lambda x: F.logsigmoid(x.transpose(1, 2))[:, 0, 0, 0].clone(), False),
        (lambda x: torch.mm(F.logsigmoid(x.transpose(1, 2))[0, 0], x[0, 0]), False),
        (lambda x: F.mse_loss(x.transpose(1, 2), x.transpose(1, 2), reduction="none"), True),
        (lambda x: F.silu(x.transpose(1, 2)), False),
        (lambda x: x.transpose(1, 2).sum(1), False),
        (lambda x: F.scaled_dot_product_attention(x, x, x), True),
        (lambda x: torch.fft.fft(x).real, True),
    ],
)
def test_where_operands_are_not_row_major_some_ops_are_certain(made: Any, expected: bool) -> None:
    assert uncertain(made) == expected


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 1, 3), (3, 7, 1), True),
        ((2, 3), (4, 1), False),
        ((2, 3), (0, 1), False),
        ((), (), True),
    ],
)
def test_what_is_row_major(size: tuple[int, ...], stride: tuple[int, ...], expected: bool) -> None:
    assert row_major(Geometry.of(size, stride, 0)) == expected
