"""Which line a reader is shown for an op."""

from __future__ import annotations

from pathlib import Path

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Draft, Frame
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.sources import Sources

KIND = TensorType("f32", (2,))


def draft(frame: Frame | None, caller: Frame | None = None) -> Draft:
    return Draft("%0", "negate", ("x",), KIND, (), frame, caller)


def program(*drafts: Draft) -> RankProgram:
    return RankProgram({}, drafts, {}, ())


def test_files_are_named_from_the_users_folder_and_numbered_as_they_come(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    one, two = ((str(tmp_path / name), 3, "step") for name in ("pkg/model.py", "train.py"))
    first, second = sources.loc(draft(one)), sources.loc(draft(two))
    assert first is not None and second is not None and (first.source, second.source) == (0, 1)
    assert sources.names == ("pkg/model.py", "train.py")
    assert sources.frame(second) == two and sources.frame(None) is None is sources.loc(draft(None))
    assert sources.loc(draft(one)) == first, "the same line again"


def test_a_file_elsewhere_is_named_alone(tmp_path: Path) -> None:
    sources = Sources(tmp_path / "mine")
    sources.loc(draft((str(tmp_path / "other/lib.py"), 3, "f")))
    assert sources.names == ("lib.py",)


def test_a_helper_that_several_lines_call_says_which_called_it(tmp_path: Path) -> None:
    helper = (str(tmp_path / "comm.py"), 9, "reduce")
    callers = [(str(tmp_path / "train.py"), line, "step") for line in (20, 30)]
    drafts = [draft(helper, caller) for caller in callers]
    sources = Sources(tmp_path, [program(*drafts)])
    found = sources.loc(drafts[1])
    assert found is not None and found.function == "reduce, called at train.py:30 in step"
    alone = Sources(tmp_path, [program(drafts[0])]).loc(drafts[0])
    assert alone is not None and alone.function == "reduce"
