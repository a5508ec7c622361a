"""ATen and c10d ops to IR ops: one table-driven module per family.

Importing this package fills the table of :mod:`.table`; :class:`~.driver.Lowering` runs a recorded trace
through it.
"""

from . import (
    attention,
    collectives,
    complex,
    creation,
    elementwise,
    indexing,
    linear,
    losses,
    normalization,
    optimizer,
    reductions,
)
from .driver import Lowering, RankProgram

__all__ = [
    "Lowering",
    "RankProgram",
    "attention",
    "collectives",
    "complex",
    "creation",
    "elementwise",
    "indexing",
    "linear",
    "losses",
    "normalization",
    "optimizer",
    "reductions",
]
