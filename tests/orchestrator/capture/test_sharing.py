"""What strides decide is refused where they are not known: the plan said one thing, a job did the other."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import AliasingError


def crooked(x: Tensor) -> Tensor:
    """A CPU makes it row-major of a transposed tensor, which no meta function says."""
    return F.logsigmoid(x.transpose(0, 1)).transpose(0, 1)


def copied(x: Tensor) -> Tensor:
    dist.all_reduce(x.contiguous())  # the line of the bug
    return x


def of_another_shape(x: Tensor) -> Tensor:
    torch.reshape(x, (-1,)).mul_(2)  # the line of the bug
    return x


def flat(x: Tensor) -> Tensor:
    y = x.flatten()
    x.mul_(2)  # the line of the bug
    return y.view(4, 3)


def in_one_buffer(x: Tensor) -> Tensor:
    _flatten_dense_tensors([x]).mul_(2)  # the line of the bug
    return x


def through_a_third(x: Tensor) -> Tensor:
    y, z = x.contiguous(), x.ravel()
    z.mul_(2)  # the line of the bug
    return y


def in_another_format(x: Tensor) -> Tensor:
    x.to(memory_format=torch.contiguous_format).mul_(2)  # the line of the bug
    return x


def asked(x: Tensor) -> Tensor:
    return 2 * x if x.is_contiguous() else x  # the line of the bug


def strided(x: Tensor) -> Tensor:
    return x.as_strided((4, 3), (3, 1))  # the line of the bug


def what_it_gives_alone(x: Tensor) -> Tensor:
    y = x.contiguous()
    dist.all_reduce(y)
    return y / 2


def written_anew(x: Tensor) -> Tensor:
    y = x.contiguous()
    y.mul_(2)
    x.copy_(y)
    return x


def a_copy(x: Tensor) -> Tensor:
    x.clone(memory_format=torch.contiguous_format).mul_(2)
    return x


def definition(act: Any, made: Any = crooked) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        y = made(batch["x"] @ model.weight.detach())
        loss = (act(y) if dist.is_initialized() else y).sum() * model.weight.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="shared",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=step,
        batch={"x": Batch((4, 3))},
    )


WRONG = (copied, of_another_shape, flat, in_one_buffer, through_a_third, in_another_format)


@pytest.mark.parametrize("act", WRONG)
def test_a_write_to_what_may_be_a_copy_is_refused_where_the_other_is_read(act: Any) -> None:
    with pytest.raises(
        AliasingError, match=r"reads what may have been written at .*# the line of the bug"
    ) as caught:
        capture(definition(act), jobs=1)
    assert caught.value.frame is not None and caught.value.frame[0] == __file__
    assert "`.view(…)` for the same memory" in (caught.value.instead or "")


@pytest.mark.parametrize(("act", "name"), [(asked, "is_contiguous"), (strided, "as_strided")])
def test_code_that_asks_for_strides_that_nobody_knows_is_refused(act: Any, name: str) -> None:
    with pytest.raises(AliasingError, match=f"asks by `{name}` how a tensor lies in memory") as caught:
        capture(definition(act), jobs=1)
    file, line, _ = caught.value.frame or ("", 0, "")
    assert file == __file__ and "# the line of the bug" in linecache.getline(file, line)


@pytest.mark.parametrize("act", [what_it_gives_alone, written_anew, a_copy])
def test_where_one_of_the_two_is_used_strides_are_no_matter(act: Any) -> None:
    assert capture(definition(act), jobs=1).mesh.ranks == 2


@pytest.mark.parametrize("act", [*WRONG, asked, strided])
def test_of_certain_strides_a_trace_knows_which_it_is(act: Any) -> None:
    assert capture(definition(act, F.silu), jobs=1).mesh.ranks == 2


def test_a_gradient_lies_as_its_parameter_does() -> None:
    """PyTorch copies what lies otherwise: `.contiguous()` of it is the gradient itself."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        loss = F.logsigmoid(model.weight.t()).sum() + model(batch["x"]).sum()
        loss.backward()
        if dist.is_initialized():
            dist.all_reduce(model.weight.grad.contiguous().view(-1), op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    batch = {"x": Batch((4, 3), shard={"dp": 0})}
    plan = capture(replace(definition(a_copy), step=step, batch=batch, mean_over={"loss": ("dp",)}), jobs=1)
    assert any(op.name == "all_reduce" for c in plan.classes for op in c.program.ops)
