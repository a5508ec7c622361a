"""Lines of a plan name files that its reader has, and the caller of a helper."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Draft
from orchestrator.capture.errors import Frame
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.sources import Sources

F = TensorType("f32", (4,))


def draft(frame: Frame | None, caller: Frame | None = None) -> Draft:
    return Draft("%0", "tanh", ("x",), F, (), frame, caller)


def program(*drafts: Draft) -> RankProgram:
    return RankProgram({"x": F}, drafts, {}, ())


def test_files_are_named_from_the_root_once_each(tmp_path: Path) -> None:
    """A plan that names directories of one machine differs from the same plan of another."""
    sources = Sources(tmp_path)
    lines = [("a/model.py", 3), ("train.py", 5), ("a/model.py", 9)]
    found = [sources.loc(draft((str(tmp_path / file), line, "step"))) for file, line in lines]
    assert [(loc.source, loc.line, loc.function) for loc in found if loc] == [
        (0, 3, "step"), (1, 5, "step"), (0, 9, "step"),
    ]  # fmt: skip
    assert sources.names == ("a/model.py", "train.py")


def test_a_package_is_named_from_where_packages_are(tmp_path: Path) -> None:
    sources = Sources(tmp_path / "project")
    sources.loc(draft((str(Path(sysconfig.get_path("purelib")) / "torch" / "nn.py"), 3, "forward")))
    sources.loc(draft((str(tmp_path / "elsewhere" / "other.py"), 4, "f")))
    assert sources.names == ("torch/nn.py", "other.py")


def test_the_caller_is_named_where_several_lines_call_a_helper(tmp_path: Path) -> None:
    helper = (str(tmp_path / "helpers.py"), 7, "reduce_all")
    callers = [(str(tmp_path / "model.py"), line, "forward") for line in (11, 12)]
    shared = [draft(helper, caller) for caller in callers]
    sources = Sources(tmp_path, [program(shared[0]), program(shared[1])])
    found = [sources.loc(one) for one in shared]
    assert [loc.function for loc in found if loc] == [
        "reduce_all, called at model.py:11 in forward", "reduce_all, called at model.py:12 in forward",
    ]  # fmt: skip
    assert [(loc.source, loc.line) for loc in found if loc] == [(0, 7), (0, 7)]
    assert sources.names == ("helpers.py",)


def test_a_function_with_one_caller_speaks_for_itself(tmp_path: Path) -> None:
    one = draft((str(tmp_path / "m.py"), 7, "f"), (str(tmp_path / "train.py"), 2, "step"))
    loc = Sources(tmp_path, [program(one, one)]).loc(one)
    assert loc is not None and loc.function == "f"


def test_a_function_s_name_and_its_caller_s_stay_short(tmp_path: Path) -> None:
    helper = (str(tmp_path / "helpers.py"), 7, "f" * 150)
    shared = [draft(helper, (str(tmp_path / "model.py"), line, "g" * 150)) for line in (1, 2)]
    loc = Sources(tmp_path, [program(*shared)]).loc(shared[0])
    assert loc is not None and len(loc.function) == 200


def test_a_line_is_found_again_with_the_path_that_was_recorded(tmp_path: Path) -> None:
    """Errors show the user's own path."""
    frame = (str(tmp_path / "model.py"), 3, "step")
    sources = Sources(tmp_path)
    assert sources.frame(sources.loc(draft(frame))) == frame


def test_an_op_without_a_line_has_no_place(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    assert sources.loc(draft(None)) is None and sources.frame(None) is None and sources.names == ()
