"""Models of other libraries, captured from their own code, are proved; with a mistake they are refuted.

Without PyTorch they are skipped, like all tests of the capture.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import trainverify as tv
from certificates.plan.plan import Plan
from tests.corpus.run import shown

ROOT = Path(__file__).resolve().parents[1]
#: A file of examples/models, and arguments of its ``definition``.
PROVED: dict[str, tuple[str, dict[str, int | str]]] = {
    "llama": ("hf_decoder.py", {}),
    "qwen3": ("hf_decoder.py", {"family": "qwen3"}),
    "gpt2": ("hf_gpt2.py", {}),
    "gpt2 sharded": ("hf_gpt2.py", {"sharded": 1}),
    "vit": ("hf_gpt2.py", {"family": "vit"}),
}
#: Its wrong twin goes from emission to the checker's verdict; those of others to the replay of a witness.
WHOLE = "gpt2 sharded"


def captured(name: str, *, unsynchronised: bool = False) -> Plan:
    pytest.importorskip("torch")
    from orchestrator.capture import Definition, capture
    from orchestrator.capture.userfile import load_definition

    file, settings = PROVED[name]
    defined: Definition = load_definition(ROOT / "examples" / "models" / file, settings)
    if unsynchronised:
        defined = replace(defined, parallelize=lambda model, _mesh: model)
    return capture(defined, jobs=1, root=ROOT)


def verdict(plan: Plan, folder: Path) -> tv.Kind:
    return tv.check(tv.emit(plan, folder / "bundle", witness_seconds=20).bundle).kind


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVED)
def test_the_librarys_own_code_is_proved_and_a_wrong_twin_refuted(name: str, tmp_path: Path) -> None:
    from tests.right_plans.rewriting import spoiled

    plan = captured(name)
    assert verdict(plan, tmp_path) is tv.Kind.PROVED
    if name == WHOLE:
        assert verdict(spoiled(plan), tmp_path / "wrong") is tv.Kind.REFUTED
    else:
        assert shown(spoiled(plan))


@pytest.mark.slow
def test_gpt2_without_its_wrapper_is_refuted() -> None:
    """Every rank trains on its own rows, and nobody adds the gradients."""
    assert shown(captured("gpt2", unsynchronised=True))


@pytest.mark.slow
def test_mixtral_whose_experts_lie_on_ranks_is_proved() -> None:
    """The single device has the library's grouped products; ranks send rows to their experts."""
    pytest.importorskip("transformers")
    from orchestrator.capture import capture
    from tests.orchestrator.capture.conftest import load_example

    assert tv.verify(capture(load_example("hf_mixtral.py"), jobs=1), jobs=1).kind is tv.Kind.PROVED
