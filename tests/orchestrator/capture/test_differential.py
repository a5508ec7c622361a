"""Every lowering, forward and backward, against eager PyTorch on random calls of its op."""

from __future__ import annotations

import pytest

from orchestrator.capture.lowering.decompositions import DECOMPOSED
from orchestrator.capture.lowering.table import EFFECTS, LOWERINGS
from orchestrator.capture.spoilt import SPOILS

from .differential import choices, decomposed, dispatch, layers, pointwise, structured, windows
from .differential.kit import TABLE, check

GENERATORS = [(key, i) for key, generators in sorted(TABLE.items()) for i in range(len(generators))]
#: Namespaces of what joins ranks.
COLLECTIVES = ("dist.", "_c10d_functional.", "_dtensor.")
#: Ops that PyTorch decomposes unless DTensor calls them on its local tensors.
INSIDE_DTENSOR = {
    *(
        f"aten.{n}"
        for n in ("__and__", "__or__", "__xor__", "to", "contiguous", "reshape", "square", "_fused_rms_norm")
    ),
    *("complex.aten.resolve_conj", "complex.aten.conj_physical"),
}
#: Only what PyTorch takes ops apart into calls these: their cases are those of the ops.
PARTS = "prims."
FEW, MANY = 4, 40


def _run(key: str, number: int, seeds: range) -> list[str]:
    return [check(key, TABLE[key][number], f"{key} {number} {seed}") for seed in seeds]


def test_every_lowering_has_a_differential_test() -> None:
    """Collectives need several ranks: they are compared with gloo elsewhere; what an optimizer may have
    written to a gradient is no op (``test_spoilt.py``)."""
    assert choices and dispatch and pointwise and structured and layers and windows and decomposed
    table = {name for name in (*LOWERINGS, *EFFECTS) if not name.startswith((*COLLECTIVES, PARTS, SPOILS))}
    assert table | {f"aten.{name}" for name in DECOMPOSED} == set(TABLE) | INSIDE_DTENSOR


@pytest.mark.parametrize(("key", "number"), GENERATORS, ids=lambda x: str(x))
def test_agrees_with_pytorch(key: str, number: int) -> None:
    _run(key, number, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize(("key", "number"), GENERATORS, ids=lambda x: str(x))
def test_agrees_with_pytorch_on_many_cases(key: str, number: int) -> None:
    """At least a quarter must be compared: the others are refused in words, by the capture or by PyTorch."""
    outcomes = _run(key, number, range(FEW, MANY))
    assert outcomes.count("agreed") >= len(outcomes) // 4, outcomes
