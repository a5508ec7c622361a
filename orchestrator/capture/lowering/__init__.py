"""ATen and c10d ops to IR ops: one table-driven module per family.

Importing this package fills the table of :mod:`.table`; :class:`~.driver.Lowering` runs a recorded trace
through it.
"""

from . import (
    attention,
    batches,
    choosing,
    collectives,
    complex,
    creation,
    dispatch,
    elementwise,
    indexing,
    interpolated,
    linear,
    losses,
    moments,
    moves,
    normalization,
    optimizer,
    reductions,
    scattering,
    windows,
)
from .driver import Lowering, RankProgram

__all__ = [
    "Lowering",
    "RankProgram",
    "attention",
    "batches",
    "choosing",
    "collectives",
    "complex",
    "creation",
    "dispatch",
    "elementwise",
    "indexing",
    "interpolated",
    "linear",
    "losses",
    "moments",
    "moves",
    "normalization",
    "optimizer",
    "reductions",
    "scattering",
    "windows",
]
