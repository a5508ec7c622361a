"""Generators of random numbers from which a trace draws without drawing: those of weights that it has not.

Where ``build`` initialises weights a job draws, and a trace, which has no values, does not. So afterwards the
generator stands elsewhere than in a job: what real numbers it would give (a permutation that says which
piece a rank holds) nobody knows, nor whether ranks that have drawn otherwise before are given the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from .errors import StateError
from .frames import user_frame
from .layouts import local_tensor

_SEEDED = (
    "torch.manual_seed(n) right before it, in parallelize; or generator=torch.Generator().manual_seed(n), of "
    "which no weights are made"
)


class Drawing(TorchDispatchMode):  # type: ignore[misc]
    """While a model is built and cut: whoever draws real numbers behind such weights is refused."""

    def __init__(self) -> None:
        super().__init__()
        #: How generators stand of which weights were made, until they are given a seed.
        self._behind: set[bytes] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)]
        generator = given[0] if given else torch.default_generator
        before = _state(generator)
        result = func(*args, **kwargs)
        tensors = [local_tensor(t) for t in tree_leaves((result, args)) if isinstance(t, torch.Tensor)]
        if all(t.is_meta for t in tensors):  # nothing is drawn in a job, either
            return result
        if any(isinstance(t, FakeTensor) for t in tensors):
            with _disable_current_modes():
                torch.rand(1, generator=generator)  # a job draws, too: no seed leads to this state
            self._behind.add(_state(generator))
        elif before in self._behind and all(isinstance(t, nn.Parameter) for t in tensors):
            self._behind.add(_state(generator))  # weights that are real: nobody decides by them
        elif before in self._behind:
            raise StateError(
                "real numbers are drawn of a generator of which weights were made before: a trace has no "
                "weights and draws none, and in a job a rank that has made others is given other numbers",
                op=str(func),
                frame=user_frame(),
                instead=_SEEDED,
            )
        return result


def _state(generator: torch.Generator) -> bytes:
    with _disable_current_modes():
        return bytes(generator.get_state().numpy())
