"""Two bundles, one proved and one refuted, as `tv-emit` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.plan.plan import Plan
from checker.reading.bundle import read_bundle
from checker.report.findings import Findings
from checker.reporting import read
from orchestrator.emit import emit
from tests.corpus.mutate import mutants

ABOUT = {"who": "the <b>team</b>", "commit": "0123abc"}


_written: dict[str, Path] = {}
"""Written once in a process: the mutation test ends every fixture after each test, and leaves out tests that
take long."""


@pytest.fixture(scope="session")
def proved(mlp: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "proved" not in _written:
        folder = tmp_path_factory.mktemp("proved") / "b"
        emit(mlp, folder, jobs=1, about=ABOUT)
        _written["proved"] = folder
    return _written["proved"]


@pytest.fixture(scope="session")
def refuted(mlp: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One subtraction is turned around."""
    if "refuted" not in _written:
        folder = tmp_path_factory.mktemp("refuted") / "b"
        broken = next(m for m in mutants(mlp) if m.operator == "swap" and "subtract %31" in m.where)
        emit(broken.build(), folder, jobs=1)
        _written["refuted"] = folder
    return _written["refuted"]


@pytest.fixture(scope="session")
def right(proved: Path) -> Findings:
    return read(read_bundle(proved))


@pytest.fixture(scope="session")
def wrong(refuted: Path) -> Findings:
    return read(read_bundle(refuted))
