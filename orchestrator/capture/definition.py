"""What a user's file defines: one training step, its mesh and its batch (protocol: ``docs/capture.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from .errors import Frame
from .frames import user_frame

Step = Callable[[nn.Module, torch.optim.Optimizer, Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Batch:
    """One batch tensor of the single-device step.

    ``shard`` maps mesh axes to the tensor dimension whose equal chunks the ranks along that axis read, the
    first axis being the major one; along the other axes every rank reads the same values.  This is a
    declaration: no trace can show which rows a data loader hands out.  ``bounds`` is the half-open range of
    an integer tensor; it becomes an assumption of the certificate.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    shard: Mapping[str, int] = field(default_factory=dict)
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True)
class Bucket:
    """A flat tensor that only the parallel step has: the row-major elements of tensors of the specification.

    ``tensors`` (plan names such as ``opt.exp_avg.w``) follow one another, padding at the end; the ranks along
    ``axis`` hold equal chunks. Without an axis every rank holds all of it.
    """

    tensors: tuple[str, ...]
    axis: str | None = None


@dataclass(frozen=True)
class Definition:
    """A training step, once for a single device and once for every rank of a mesh.

    ``build`` makes the model; it is called under fake tensors, so no weight is ever in memory.
    ``parallelize`` turns that model into the one of a rank. ``parallel_step`` defaults to ``step``. Layouts
    of DTensors are read off them; ``layouts`` declares those of plain tensors of the rank's model: parameter
    name -> mesh axis -> tensor dimension, major axis first, unnamed axes replicated. ``mean_over`` names the
    outputs of which the specification's value is the mean over the ranks of some axes. ``buckets`` declares
    flat states of the rank's model or optimizer by plan name.
    """

    name: str
    mesh: Mapping[str, int]
    build: Callable[[], nn.Module]
    parallelize: Callable[[nn.Module, DeviceMesh], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    step: Step
    batch: Mapping[str, Batch]
    parallel_step: Step | None = None
    layouts: Mapping[str, Mapping[str, int]] | None = None
    mean_over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: Mapping[str, Bucket] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    #: Where the user's file makes this definition.
    frame: Frame | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", user_frame())

    def declared(self) -> str:
        """All that it says without being called, in one text."""
        names = ("name", "mesh", "batch", "layouts", "mean_over", "buckets", "provenance")
        return repr([getattr(self, name) for name in names])
