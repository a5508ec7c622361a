"""What capture changes in PyTorch while a step runs."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .disguise import STANDS, Text
from .errors import DefinitionError, Frame
from .rates import Rate, hides, multiplied, tensor_of
from .recorder import forget_constant
from .signatures import signature
from .spoilt import spoil
from .substituting import by_user, replaced

#: What capture changes in the libraries while a step runs; recorded in the plan.
SHIMS = (
    "optimizers that can keep their step and learning rate in tensors do so on a CPU (capturable=True), "
    "one parameter at a time (foreach=False, fused=False)",
    "DTensor divides a replicated 2-norm by the exact root of the axis size, not by the double nearest to it",
)
#: Options of an optimizer that a trace sets.
_CHANGED = {"foreach": False, "fused": False, "capturable": True}
_STORAGES = (torch.UntypedStorage, torch.TypedStorage)
#: Recorded where it had anything to change.
NUMBERS = (
    "a step count or learning rate that is a tensor stays one where an optimizer would read its value: "
    "value= and alpha= are the products that they stand for"
)
#: Likewise.
READ = (
    "a number that an optimizer's formula reads out of a tensor (item) stays a tensor; min and max of it are "
    "torch.minimum and torch.maximum"
)


def symbolic_hyperparameters(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Make learning rates tensors, and step counts where the optimizer supports that (``capturable``).

    The learning rate only where a step's formula has it: Rprop's is the size of its first step alone. Gives
    the numbers that were there, by the name of the plan's input: what takes their place is one input of all
    ranks. An optimizer whose step is not PyTorch's own keeps its options, for it may do anything with them;
    one that says it is ``capturable`` takes tensors.
    """
    numbers: dict[str, float] = {}
    own = type(optimizer).step.__module__.startswith("torch.")
    rated = _rated(optimizer) if own else None
    for i, group in enumerate(optimizer.param_groups):
        if own:
            traced = {key: value for key, value in _CHANGED.items() if key in group}
            group = optimizer.param_groups[i] = Options(group, traced)
        if group.get("capturable") if rated is None else rated:
            numbers[learning_rate(i)] = _number(group["lr"])
            given = isinstance(group["lr"], torch.Tensor)
            group["lr"] = torch.zeros(()) if given else Rate(torch.zeros(()))
    return numbers


def _rated(optimizer: torch.optim.Optimizer) -> bool | None:
    """Have the formulas of PyTorch's by which it steps, or one that it wraps, a learning rate? ``None`` where
    it has none of these."""
    held = (item for item in vars(optimizer).values() if isinstance(item, torch.optim.Optimizer))
    homes = (sys.modules[type(each).step.__module__] for each in (optimizer, *held))
    formulas = [f for home in homes for _, f in inspect.getmembers(home, _is_formula)]
    return any("lr" in inspect.signature(f).parameters for f in formulas) if formulas else None


class Options(dict[str, Any]):
    """The options of a group of parameters: what the optimizer was made with, in whatever way they are read;
    PyTorch's own code is given what the trace has made of one that it asks for."""

    def __init__(self, given: dict[str, Any], traced: dict[str, Any]) -> None:
        super().__init__(given)
        self._base, self._before, self._traced = given, dict(given), traced

    def missed(self) -> list[str]:
        """What was written to the options that the optimizer was made with, where PyTorch would read it."""
        keys = dict.fromkeys((*self._base, *self._before))
        gone = object()
        return [k for k in keys if self._base.get(k, gone) is not self._before.get(k, gone)]

    def asked(self, key: str) -> Any:
        """What the optimizer was made with, where the trace has changed it."""
        return super().get(key) if key in self._traced else None

    def __getattribute__(self, name: str) -> Any:
        asks = sys._getframe(1)
        if name == "__class__" and by_user(asks):
            return dict
        if hides(dict, name, asks):
            raise AttributeError(f"'dict' object has no attribute '{name}'")
        return super().__getattribute__(name)

    def __getitem__(self, key: str) -> Any:
        found = super().__getitem__(key)
        return found if by_user(sys._getframe(1)) else self._traced.get(key, tensor_of(found))

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        return found if by_user(sys._getframe(1)) else self._traced.get(key, tensor_of(found))

    def __setitem__(self, key: str, value: Any) -> None:
        self._traced.pop(key, None)
        was = super().get(key)
        kept = type(was) is Rate and isinstance(value, FakeTensor) and not by_user(sys._getframe(1))
        super().__setitem__(key, Rate(value) if kept else value)

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __repr__(self) -> str:
        return Text(super().__repr__())


STANDS[Options] = dict


def written_elsewhere(optimizer: torch.optim.Optimizer, frame: Frame | None) -> None:
    """A :class:`DefinitionError` if an option was written where an optimizer in a job finds it, and that of
    the trace does not."""
    groups = (g for g in optimizer.param_groups if isinstance(g, Options))
    missed = next((key for group in groups for key in group.missed()), None)
    if missed is not None:
        raise DefinitionError(
            f"the step writes {missed} into a dict that the optimizer was made with",
            frame=frame,
            instead=f"optimizer.param_groups[i][{missed!r}] = …, which is the same in a job",
        )


def one_at_a_time(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    """The parameters (by ``id``) that the user wants to have taken one at a time."""
    groups = optimizer.param_groups
    wanted = [g for g in groups if isinstance(g, Options) and g.asked("foreach") is False]
    return frozenset(id(p) for group in wanted for p in group["params"])


def learning_rate(group: int) -> str:
    """The name of a plan's input."""
    return "hyper.lr" if group == 0 else f"hyper.lr.{group}"


def _number(rate: float | torch.Tensor) -> float:
    """A learning rate as it was given; NaN, which equals nothing, if no trace knows it."""
    known = getattr(rate, "constant", None) if isinstance(rate, FakeTensor) else rate
    return math.nan if known is None else float(known)


def _is_formula(item: object) -> bool:
    return inspect.isfunction(item) and item.__name__.startswith("_single_tensor_")


class TensorNumbers(TorchFunctionMode):  # type: ignore[misc]
    """``x.addcdiv_(y, z, value=t)`` and ``x.add_(y, alpha=t)`` of a tensor ``t`` are what they mean.

    PyTorch would read the tensor's value, which a trace has not; nor is it read by ``x.item()``. ``used`` is
    told when it happens. What a DTensor's ``item`` reads is a rank's own part, and no number of all.
    """

    def __init__(self, used: set[str]) -> None:
        super().__init__()
        self._used = used

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.item and type(args[0]) is FakeTensor and args[0].numel() == 1:
            self._used.add(READ)
            return args[0].reshape(())
        if (made := multiplied(func, args, kwargs)) is not None:
            self._used.add(NUMBERS)
            return made
        return func(*args, **kwargs)


def _of_tensors(extreme: Callable[..., Any], elementwise: Callable[..., Any]) -> Callable[..., Any]:
    """``min`` or ``max`` in an optimizer's formula, whose numbers may be tensors in a trace."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not any(isinstance(x, FakeTensor) for x in args):
            return extreme(*args, **kwargs)
        return functools.reduce(
            elementwise, [x if isinstance(x, FakeTensor) else torch.full((), x) for x in args]
        )

    return run


@contextmanager
def one_path() -> Iterator[None]:
    """Code that PyTorch runs in another way later, or in one of its own on a CPU, runs as it is written.

    TorchScript specialises a function after some runs; a recurrent layer is one op where oneDNN computes it.
    Whoever asks whether oneDNN is on is told what the file has set.
    """
    profiled, of_its_own = torch._C._jit_set_profiling_mode(False), torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    told, switch = [of_its_own], torch._C._set_mkldnn_enabled
    asked = vars(type(torch.backends.mkldnn))["enabled"]
    places = (asked, "getter", "setter"), (torch._C, "_get_mkldnn_enabled", "_set_mkldnn_enabled")
    try:
        with ExitStack() as patches:
            for holder, get, set_to in places:
                patches.enter_context(patch.object(holder, get, lambda: told[-1]))
                patches.enter_context(patch.object(holder, set_to, told.append))
            yield
    finally:
        switch(of_its_own)
        torch._C._jit_set_profiling_mode(profiled)


@contextmanager
def capturable_on_cpu(optimizer: torch.optim.Optimizer | None = None) -> Iterator[set[str]]:
    """PyTorch asserts that a tensor-valued step is on an accelerator; the formulas are the same on a CPU.

    Nor does it turn a tensor-valued step or learning rate into a Python number. Yields what of this was
    needed, as a plan records it. The ``optimizer`` says which parameters the user wants to have taken one at
    a time.
    """
    used: set[str] = set()
    alone = frozenset[int]() if optimizer is None else one_at_a_time(optimizer)

    def formula(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with TensorNumbers(used):
                function(*args, **kwargs)
            spoil(function, args, kwargs, alone)

        return functools.wraps(function)(run)

    saved: list[tuple[Any, str, Any]] = []
    extremes = {"min": _of_tensors(min, torch.minimum), "max": _of_tensors(max, torch.maximum)}
    modules = [m for key, m in sys.modules.items() if key.startswith("torch.optim.")]
    given = [(vars(m), name) for m in modules for name in extremes if name not in vars(m)]
    for scope, name in given:
        scope[name] = extremes[name]
    for module in modules:
        for name, item in list(vars(module).items()):
            if name == "_get_capturable_supported_devices":
                new: Any = lambda *_args, **_kwargs: ["cpu"]  # noqa: E731
            elif name == "_get_value":
                new = lambda x: x  # noqa: E731
            elif _is_formula(item):
                new = formula(item)
            else:
                continue
            saved.append((module, name, item))
            setattr(module, name, new)
    try:
        yield used
    finally:
        for module, name, item in saved:
            setattr(module, name, item)
        for scope, name in given:
            scope.pop(name, None)


@contextmanager
def writes_forget() -> Iterator[None]:
    """What an op writes with a value that no trace knows is remembered no more, in a list of tensors as well.

    A fake tensor made by ``torch.tensor(3.0)`` remembers 3, and PyTorch looks for what is written among the
    arguments only: after ``torch._foreach_add_([t], [loss])`` it would still say 3. Nor does it know of
    tensors that are made of its storage (``set_``), and may be written: then it remembers nothing.
    """

    def patch(original: Callable[..., None]) -> Callable[..., None]:
        def method(mode: FakeTensorMode, func: Any, fakes: Any, args: Any, kwargs: Any) -> None:
            original(mode, func, fakes, args, kwargs)
            for tensor in tree_leaves(signature(func).written(args, kwargs)):
                forget_constant(tensor)
            shared = {x._cdata for x in tree_leaves(args) if isinstance(x, _STORAGES)}
            for tensor in _remembering(mode) if shared else ():
                if tensor.untyped_storage()._cdata in shared:
                    forget_constant(tensor)

        return method

    with replaced(FakeTensorMode, "invalidate_written_to_constants", patch):
        yield


def _remembering(mode: FakeTensorMode) -> list[FakeTensor]:
    """The fake tensors whose values PyTorch knows."""
    known = mode.fake_tensor_converter.constant_storage_mapping.values()
    return [tensor for held in known for place in held if (tensor := place()) is not None]


@contextmanager
def exact_norm_shares() -> Iterator[None]:
    """DTensor turns a norm that is replicated over ``n`` ranks into ``n`` shares: the norm over root ``n``.

    It divides by the double nearest to that root. With a root among the recorded ops the shares add up.
    """
    original = _NormPartial._partition_value

    def partition(self: Any, tensor: torch.Tensor, mesh: Any, mesh_dim: int) -> torch.Tensor:
        if self.norm_type != 2:
            return cast(torch.Tensor, original(self, tensor, mesh, mesh_dim))
        return tensor / torch.full((), float(mesh.size(mesh_dim)), dtype=tensor.dtype).sqrt()

    _NormPartial._partition_value = partition
    try:
        yield
    finally:
        _NormPartial._partition_value = original
