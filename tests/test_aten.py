"""The page lists what capture does with every op of PyTorch's core set."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def aten() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_aten", ROOT / "bench" / "aten.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_aten"] = module
    spec.loader.exec_module(module)
    return module


def test_every_core_op_is_lowered_refused_with_advice_or_out_of_scope(aten: ModuleType) -> None:
    words = {str(op): aten.status(op)[0] for op in aten.core_ops()}
    assert len(words) > 150 and not [op for op, word in words.items() if word == "unknown"]


def test_the_page_has_the_table_that_the_command_writes(aten: ModuleType) -> None:
    """After a change: python bench/aten.py --write."""
    page = (ROOT / "docs" / "coverage.md").read_text("utf-8")
    assert aten.replaced(page, aten.table()) == page


def test_an_op_that_nobody_thought_of_is_seen(aten: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(aten, "OPS", ())
    assert aten.status(torch.ops.aten.acos.default) == ("unknown", "")
    assert aten.status(torch.ops.aten.mm.default)[0] == "lowered"
