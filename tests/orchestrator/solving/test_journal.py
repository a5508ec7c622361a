"""The journal of a run: nothing finished is lost, nothing unfinished is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.solving import cores
from orchestrator.solving.cores import Cores
from orchestrator.solving.journal import Journal, key
from orchestrator.solving.premises import AllPremises, premises

TEXT = """\
(set-logic QF_UFLRA)
(declare-fun e0 () Real)
(declare-fun e1 () Real)
(assert (! (= e1 2.0) :named def.1))
(assert (! (= e0 1.0) :named def.2))
(assert (! (not (= e0 1.0)) :named goal))
(check-sat)
"""


def test_entries_survive(tmp_path: Path) -> None:
    Journal(tmp_path / "j").put("a", [1, 2])
    Journal(tmp_path / "j").put("b", None)
    found = Journal(tmp_path / "j")
    assert found.get("a") == [1, 2] and "b" in found and found.get("b") is None and len(found) == 2


@pytest.mark.parametrize("lost", [1, 5, 9])
def test_a_line_that_was_cut_short_is_dropped_and_the_next_is_whole(tmp_path: Path, lost: int) -> None:
    journal = Journal(tmp_path / "j")
    journal.put("a", 1)
    journal.put("b", [2, 3])
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-lost])
    Journal(tmp_path / "j").put("c", 4)
    found = Journal(tmp_path / "j")
    assert found.get("a") == 1 and "b" not in found and found.get("c") == 4


def test_strange_lines_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'["a", 1]\n[1]\n7\n\xff\xfe\n[["x"], 2]\n["b", 2]\n')
    found = Journal(tmp_path / "j")
    assert len(found) == 2 and found.get("b") == 2


def test_keys_tell_the_parts_apart() -> None:
    assert len({key("ab", "c"), key("a", "bc"), key("abc"), key("abc", "")}) == 4


def test_cores_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cores(Journal(tmp_path / "j")).core(TEXT) == (1,)
    monkeypatch.setattr(cores, "minimal_core", lambda _: pytest.fail("asked again"))
    assert Cores(Journal(tmp_path / "j")).core(TEXT) == (1,)


@pytest.mark.parametrize(("entry", "core"), [([0, 9, "x", -1], (0,)), (None, None), ("01", None), ({}, None)])
def test_a_core_from_a_journal_is_a_guess(entry: object, core: tuple[int, ...] | None) -> None:
    journal = Journal()
    journal.put(key("core", cores.z3.get_version_string(), TEXT), entry)
    assert Cores(journal).core(TEXT) == core


def test_without_a_solver_every_premise_is_kept() -> None:
    assert premises(TEXT) == 2 and AllPremises().core(TEXT) == (0, 1)
