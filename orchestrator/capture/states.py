"""What a training step finds and leaves: tensors by plan name, read through whatever holds them at the time.

A state is not an object: ``self.buffer = …``, ``state["m"] = …`` and ``p.data = …`` bind a name to another
tensor without any op. So a :class:`Snapshot` is taken before and after a step, and two of them are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from .counters import Numbers
from .definition import Definition
from .errors import CaptureError, DefinitionError, LayoutError, StateError, gathered
from .layouts import Layout, layout_of, local_tensor, padded_shape, whole_storage
from .names import buffers, parameters
from .rates import tensor_of
from .recorder import TensorRef, forget_constant, reference
from .shims import learning_rate

#: A gradient is a state only if a step reads what the step before it left.
GRADIENTS = "grads"
#: The learning rate; it is a state only if the step changes it.
HYPER = "hyper"


@dataclass(frozen=True)
class State:
    """A tensor at one moment; ``held`` keeps its storage alive, so that identities stay unique.

    ``problem`` stands against its layout; only if a step reads what it holds, it is one.
    """

    ref: TensorRef
    layout: Layout | None
    held: torch.Tensor
    problem: CaptureError | None = None

    @property
    def empty(self) -> bool:
        """Does this rank own none of its elements, as the last of many shards of few rows?"""
        return 0 in self.held.shape


@dataclass(frozen=True)
class Snapshot:
    """Every state by plan name, every number in Python that a step may count with, which constant each name
    leads to, and who holds a function by itself.
    """

    states: Mapping[str, State]
    numbers: Numbers = field(default_factory=dict)
    constants: Mapping[str, TensorRef] = field(default_factory=dict)
    holders: tuple[tuple[str, object], ...] = ()

    def aliases(self) -> dict[str, str]:
        """Each name with the first name that lies in the same storage."""
        first: dict[int, str] = {}
        return {name: first.setdefault(s.ref.storage, name) for name, s in self.states.items()}


def states_of(
    definition: Definition, model: nn.Module, optimizer: torch.optim.Optimizer, parallel: bool
) -> dict[str, State]:
    """Parameters, optimizer state, buffers, gradients and learning rates as they are bound now."""
    names = {parameter: name for name, parameter in parameters(model)}
    states: dict[str, State] = {}
    problems: list[CaptureError] = []
    for name, owner, tensor in (
        *(("params", name, parameter) for parameter, name in names.items()),
        *_optimizer_states(optimizer, names),
        *(("buffers", name, buffer) for name, buffer in buffers(model)),
        *(("grads", name, p.grad) for p, name in names.items() if p.grad is not None),
        *_learning_rates(optimizer),
    ):
        full = f"{name}.{owner}" if owner else name
        try:
            if full in states:
                raise StateError("two tensors have this name", tensor=full)
            states[full] = _state(definition, full, owner, tensor, parallel)
        except CaptureError as error:
            problems.append(error)
    if problems:
        raise gathered(problems)
    return states


def held(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[torch.Tensor]:
    """The local tensors of all states that there are by now, whatever they are called."""
    found: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    found += [p.grad for p in model.parameters() if p.grad is not None]
    for inner in [] if optimizer is None else _with_held(optimizer):
        found += [tensor for entries in inner.state.values() for _, tensor in _tensors("", entries)]
        found += [tensor for group in inner.param_groups for _, tensor in _tensors("", group)]
    yield from (t for t in map(local_tensor, found) if isinstance(t, FakeTensor))


def kind(name: str) -> str:
    """``params``, ``opt``, ``buffers``, ``grads`` or ``hyper``."""
    return name.partition(".")[0]


def _state(definition: Definition, name: str, owner: str, tensor: torch.Tensor, parallel: bool) -> State:
    local = local_tensor(tensor)
    if not isinstance(local, FakeTensor):
        raise DefinitionError(
            "is a real tensor; make it from the model's tensors",
            tensor=name,
            instead="build=lambda: Model(), a new model in each call; x.new_zeros(…) in parallelize",
        )
    if 0 in local.shape and not parallel:
        raise LayoutError("has no elements", tensor=name)
    # What `torch.tensor(0)` wrote when the model was built is not what the hundredth step finds.
    forget_constant(local)
    held = local.detach()
    ref = reference(held)
    # Only FSDP pads; a gradient may be the first of many in one storage.
    pads = isinstance(tensor, DTensor) and kind(name) != GRADIENTS and 0 not in held.shape
    shape = padded_shape(held, ref) if pads else None
    layout, problem = None, None
    try:
        layout = layout_of(definition, name, owner, tensor) if parallel and kind(name) != HYPER else None
    except LayoutError as error:
        if kind(name) != GRADIENTS:  # a gradient that is zeroed before it is read is no state
            raise
        problem = error
    return State(ref if shape is None else whole_storage(ref, shape), layout, held, problem)


def _optimizer_states(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    held = [inner.state.items() for inner in _with_held(optimizer)]
    for owner, entries in itertools.chain(*held):
        tensors = list(_tensors("opt" if isinstance(owner, torch.Tensor) else f"opt.{owner}", entries))
        if isinstance(owner, torch.Tensor) and owner not in names and tensors:
            raise StateError(
                f"the optimizer keeps {', '.join(key for key, _ in tensors)} for a tensor of shape "
                f"{list(owner.shape)} that is no parameter of the model"
            )
        for key, value in tensors:
            yield key, names[owner] if isinstance(owner, torch.Tensor) else "", value


def _with_held(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """An optimizer and those that it wraps: attributes, and theirs."""
    found = [optimizer]
    for outer in found:  # grows meanwhile
        inner = (item for item in vars(outer).values() if isinstance(item, torch.optim.Optimizer))
        found += [item for item in inner if not any(item is other for other in found)]
    return found


def _tensors(prefix: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in nested mappings, lists and data classes, with the keys that lead to them."""
    value = tensor_of(value)
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{prefix}.{key}", item)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _tensors(f"{prefix}.{i}", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _tensors(f"{prefix}.{part.name}", getattr(value, part.name, None))


def _learning_rates(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, torch.Tensor]]:
    for i, group in enumerate(optimizer.param_groups):
        if isinstance(rate := tensor_of(group.get("lr")), FakeTensor):
            yield learning_rate(i), "", rate


def unsettled(before: Snapshot, after: Snapshot) -> StateError | None:
    """The first state that a step makes, drops, shapes anew or lets share other memory."""
    old, new = before.states, after.states
    for name in (*(n for n in new if n not in old), *(n for n in old if n not in new)):
        when = "only after" if name in new else "only before"
        message = f"exists {when} a step: what one leaves must be what the next one reads"
        return StateError(message, tensor=name)
    for name, was in old.items():
        now = new[name]
        if (was.ref.geometry, was.ref.dtype) != (now.ref.geometry, now.ref.dtype):
            return StateError(
                f"a step finds it as {_described(was)} and leaves it as {_described(now)}", tensor=name
            )
        if was.layout != now.layout:
            return StateError("a step changes its layout on the mesh", tensor=name)
    shared, now_shared = before.aliases(), after.aliases()
    for name in old:
        if shared[name] != now_shared[name]:
            return StateError(
                f"a step changes whose memory it shares: that of {shared[name]}, then of {now_shared[name]}",
                tensor=name,
            )
    return None


def _described(state: State) -> str:
    held = state.held
    return (
        f"{state.ref.dtype}{list(held.shape)} with strides {list(held.stride())} at {held.storage_offset()}"
    )
