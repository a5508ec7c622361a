"""Steps that look at a value to raise an exception, and such as go on with it, in a file of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition


class Bad(Exception):
    """A loss that is no number."""


@contextlib.contextmanager
def swallowing() -> Iterator[None]:
    try:
        yield
    except Bad as error:
        print(error)


class profile(swallowing().__class__):
    """It is called as one of PyTorch's."""

    def __init__(self) -> None:
        super().__init__(swallowing.__wrapped__, (), {})  # type: ignore[attr-defined]


class Holds(nn.Module):
    """Its part has a method of PyTorch's that is entered, and one of its own of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(1, 1)

    def no_sync(self) -> Any:
        return swallowing()


def asserted(loss: Any) -> None:
    assert torch.isfinite(loss), "the loss is no number"


def raised(loss: Any) -> None:
    if torch.isnan(loss).any():
        raise Bad(f"the loss is {loss}")


def said_and_raised(loss: Any) -> None:
    if not torch.isfinite(loss).all():
        for line in ("no", "number"):
            print(line if dist.is_initialized() else "")
        raise Bad


def either(loss: Any) -> None:
    if loss is None or torch.isnan(loss) or torch.isinf(loss):
        raise Bad


def without_gradients(loss: Any) -> None:
    with torch.no_grad():
        raised(loss)
    with contextlib.nullcontext() as nothing, torch.autocast("cpu", enabled=nothing is not None):
        asserted(loss)
    around = torch.enable_grad()
    with around:
        asserted(loss)
    with contextlib.suppress(Bad):
        pass


def finally_(loss: Any) -> None:
    try:
        raised(loss)
    except Bad as error:
        raise RuntimeError("no number") from error
    finally:
        print()


def raised_again(loss: Any) -> None:
    try:
        raised(loss)
    except Bad:
        raise


def by_the_library(loss: Any) -> None:
    F.gaussian_nll_loss(loss.expand(2), loss.expand(2), loss.expand(2).exp())
    torch.distributions.Normal(loss, loss.exp()).log_prob(loss)
    nn.utils.clip_grad_norm_([nn.Parameter(loss)], 1.0, error_if_nonfinite=True)


def decided(loss: Any) -> None:
    if torch.isnan(loss):
        loss.zero_()


def left(loss: Any) -> None:
    if torch.isnan(loss):
        return
    print()


def raised_by_some(loss: Any) -> None:
    if torch.isnan(loss):
        if dist.is_initialized():
            raise Bad
        loss.zero_()


def computed(loss: Any) -> None:
    print(bool(torch.isnan(loss)))


def repeated(loss: Any) -> None:
    while torch.isnan(loss):
        loss.zero_()


def handled(loss: Any) -> None:
    try:
        raised(loss)
    except Bad:
        loss.zero_()


def handled_here(loss: Any) -> None:
    try:
        if torch.isnan(loss):
            raise Bad
    except Bad:
        return


def handled_by_the_second(loss: Any) -> None:
    try:
        raised(loss)
    except ZeroDivisionError:
        raise
    except Bad:
        return


def raised_again_by_some(loss: Any) -> None:
    try:
        raised(loss)
    except Bad:
        if dist.is_initialized():
            raise


def handled_around(loss: Any) -> None:
    try:
        finally_(loss)
    except Exception as error:
        print(error)


def left_at_last(loss: Any) -> None:
    try:
        raised(loss)
    finally:
        return  # noqa: B012


def swallowed(loss: Any) -> None:
    with swallowing():
        raised(loss)


def swallowed_beside(loss: Any) -> None:
    with torch.no_grad(), swallowing():
        raised(loss)


def swallowed_by_a_name(loss: Any) -> None:
    with profile():
        raised(loss)


def swallowed_by_a_method(loss: Any) -> None:
    model = Holds()
    with model.no_sync():
        raised(loss)


def swallowed_by_choice(loss: Any) -> None:
    with torch.no_grad() if loss is None else swallowing():
        raised(loss)


def suppressed(loss: Any) -> None:
    with contextlib.suppress(Bad):
        raised(loss)


def swallowed_by_a_decorator(loss: Any) -> None:
    swallowing()(raised)(loss)


def handled_while_handling(loss: Any) -> None:
    try:
        int("none")
    except ValueError:
        try:
            raised(loss)
        except Bad as error:
            print(error)


Check = Callable[[Any], None]
ONLY_RAISE: Mapping[str, Check] = {
    check.__name__: check
    for check in (asserted, raised, said_and_raised, either, without_gradients, finally_, raised_again)
} | {"by_the_library": by_the_library}
GO_ON: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        *(decided, left, raised_by_some, computed, repeated, handled, handled_here, handled_by_the_second),
        *(raised_again_by_some, handled_around, left_at_last, swallowed, swallowed_beside, suppressed),
        *(swallowed_by_a_decorator, handled_while_handling),
        *(swallowed_by_a_name, swallowed_by_a_method, swallowed_by_choice),
    )
}


def validating(check: Check, factor: float = 1.0) -> Definition:
    """Data parallel; ``factor`` is that of the ranks' gradients."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        check(loss.detach())
        if dist.is_initialized():
            dist.all_reduce(model.weight.grad, op=dist.ReduceOp.AVG)
            model.weight.grad *= factor
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    rows = Batch((4, 3), shard={"dp": 0})
    return Definition(
        name="validating",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, _: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=step,
        batch={"x": rows, "y": rows},
        mean_over={"loss": ("dp",)},
    )
