"""Gradients that PyTorch's own optimizers may write to, where they run another formula than a trace.

A trace has them take one parameter at a time. On an accelerator they take many at once by default, and there
the formula of SGD with Nesterov's momentum adds to the gradients themselves. Whether a formula does is asked
of PyTorch, on small real tensors; what a gradient is after such a step, nobody knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from .frames import user_frame
from .recorder import Node, active, reference

#: Recorded where a formula for many parameters at once would have written to gradients.
SPOILS = "optim.spoils"
_ONE, _MANY = "_single_tensor_", "_multi_tensor_"


def spoil(
    formula: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], alone: Container[int]
) -> None:
    """After a ``formula`` for one parameter at a time: note that its gradients may be others.

    ``alone`` has the parameters of which the user asked for that formula.
    """
    recorder = active()
    if recorder is None or len(args) < 2 or not args[0] or not args[1]:
        return
    parameters, gradients = args[:2]
    usual = not any(isinstance(p, DTensor) for p in parameters)  # PyTorch takes those one by one
    if not usual or all(id(p) in alone for p in parameters) or not _writes(formula, args, kwargs):
        return
    refs = tuple(reference(g) for g in gradients)
    recorder.nodes.append(Node(SPOILS, refs, {}, None, refs, user_frame()))


def _writes(formula: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Does the formula for many parameters write to gradients, with these options? Yes if it fails here."""
    many = getattr(sys.modules[formula.__module__], formula.__name__.replace(_ONE, _MANY), None)
    if many is None:
        return False

    def real(x: Any) -> Any:
        return torch.full([min(n, 2) for n in x.shape], 0.5) if isinstance(x, torch.Tensor) else x

    with _disable_current_modes(), torch.no_grad():
        given = [[real(a[0])] if isinstance(a, list) and a else real(a) for a in args]
        options = tree_map(real, dict(kwargs)) | ({"capturable": False} if "capturable" in kwargs else {})
        gradient = given[1][0]
        before = gradient.clone()
        try:
            many(*given, **options)
        except Exception:
            return True
        return not torch.equal(gradient, before)
