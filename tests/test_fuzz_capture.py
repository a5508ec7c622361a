"""A seeded slice of the fuzzer of the capture (bench/fuzz_capture.py), and its teeth."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs the extra torch", allow_module_level=True)

from orchestrator.capture.lowering import Lowering
from tests.fuzz_capture import definitions, functions, record, run

if TYPE_CHECKING:
    from orchestrator.capture.recorder import Node


def test_captured_programs_compute_what_pytorch_computes() -> None:
    tally = run.programs(range(40))
    assert tally.differing == []
    assert tally.programs["agrees"] >= 36 and tally.refused < 0.3 * (tally.refused + tally.outputs)


@pytest.mark.slow
def test_more_captured_programs_compute_what_pytorch_computes() -> None:
    tally = run.programs(range(100_000, 100_200))
    assert tally.differing == []
    assert tally.programs["agrees"] >= 180


@pytest.mark.slow
def test_captured_steps_compute_what_processes_compute() -> None:
    tally = run.runs(range(12))
    assert tally.differing == []
    assert tally.programs["agrees"] >= 6, tally.table()


@pytest.mark.parametrize("lost", ["aten.add_.Tensor", "aten.mul.Tensor", "aten.copy_.default"])
def test_an_op_that_capture_forgets_is_noticed_and_shrunk(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(Lowering):
        def _step(self, node: Node) -> None:
            if node.op != lost:
                super()._step(node)
            elif not node.writes:
                self.write(node.outs, self.read(node.args[0]))

    monkeypatch.setattr(functions, "Lowering", Forgetful)
    for seed in range(60):
        function = functions.write(seed)
        if functions.check(function).kind == "differs":
            least = functions.shrunk(function)
            assert (
                len(least.statements) < len(function.statements) and functions.check(least).kind == "differs"
            )
            return
    raise AssertionError("60 programs noticed nothing")


def test_what_rounding_decides_is_no_disagreement() -> None:
    # a row of this attention over ones and zeros is 1, or the number after it, by the order of a sum
    inputs = (("f", (4, 3)), ("f", (4,)), ("f", (2, 3, 4)), ("i", (2, 2)), ("b", (4, 3)))
    statements = (
        "a0 = x4.double()",
        "a1 = F.scaled_dot_product_attention(*[a0[None, None]] * 3)",
        "a2 = torch.where(a1 > a0, a1, -1)",
    )
    outcome = functions.check(functions.Function(1105858, inputs, statements))
    assert (outcome.kind, outcome.rules) == ("agrees", ("no difference: rounding decides a comparison",))


def test_a_variable_may_get_another_shape() -> None:
    outcome = functions.check(functions.Function(0, (("f", (1, 4)),), ("a0 = x0 * 2", "x0 = x0[None]")))
    assert (outcome.kind, outcome.outputs, outcome.rules) == ("agrees", 2, ())


def test_a_saved_program_is_a_file_that_says_what_differs(capsys: Any) -> None:
    function = functions.write(3)
    exec(compile(function.source(), "saved.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("agrees")


def test_programs_depend_on_nothing_but_their_seed() -> None:
    assert functions.write(5) == functions.write(5) and functions.write(5) != functions.write(6)
    assert definitions.write(5).source() == definitions.write(5).source()


def test_what_was_run_adds_up_and_counts_no_seed_twice(tmp_path: Path) -> None:
    page = tmp_path / "fuzz.md"
    page.write_text(f"Before.\n\n{record.BEGIN}\n{record.END}\nAfter.\n", "utf-8")
    tally = run.Tally(outputs=20, seconds=2.4)
    tally.programs.update(agrees=8, differs=1, refused=1)
    record.add(page, record.Row.of("programs", "abc", range(10), tally))
    record.add(page, record.Row.of("programs", "abc", range(10, 20), tally))
    record.add(page, record.Row.of("programs", "def", range(10), tally))
    record.add(page, record.Row.of("runs", "abc", range(10), tally))
    assert record.read(page)[0] == record.Row("programs", "abc", 0, 19, 18, 2, 2, 0, 40, 4)
    assert "27 captured programs (60 numbers or outputs) and 9 captured runs" in page.read_text("utf-8")
    with pytest.raises(ValueError, match="has programs of seeds 0 to 19 at abc"):
        record.add(page, record.Row.of("programs", "abc", range(5, 25), tally))


def test_the_record_of_what_was_run_can_be_continued() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "fuzz.md"
    rows = record.read(page)
    assert record.total(rows) in page.read_text("utf-8")
    assert all(r.captured + r.refused + r.invalid == r.last - r.first + 1 for r in rows)
