"""Shipped plans are what tv-capture makes of examples/models with the settings in bench/recapture.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import recapture
from certificates.plan.reading import load
from orchestrator.capture import Definition
from orchestrator.capture.userfile import load_definition

SHIPPED = {p.name.removesuffix(".json.gz"): p for p in recapture.EXAMPLES.glob("*.json.gz")}
OURS = [name for name, source in recapture.SOURCES.items() if "torchtitan" not in source.file]


def test_every_shipped_plan_can_be_captured_anew() -> None:
    assert set(recapture.SOURCES) == set(SHIPPED)
    assert all(source.path.is_file() for source in recapture.SOURCES.values())
    assert set(recapture.FULL_DEPTH) <= set(SHIPPED)


@pytest.mark.parametrize("name", recapture.SOURCES)
def test_traced_and_interpolated_ranks_are_all(name: str) -> None:
    plan = load(SHIPPED[name])
    traced = plan.provenance["traced_ranks"]
    assert plan.name == name and isinstance(traced, list | tuple)
    assert int(str(plan.provenance["interpolated_ranks"])) == plan.mesh.ranks - len(traced)


@pytest.mark.parametrize("name", [name for name in recapture.SOURCES if name not in OURS])
def test_settings_are_those_of_torchtitans_plans(name: str) -> None:
    """Without torchtitan the definition cannot be made; its arguments show in the plan."""
    settings, plan = recapture.SOURCES[name].settings, load(SHIPPED[name])
    layers = {n.split(".")[2] for n in plan.specification.inputs if n.startswith("params.layers.")}
    assert len(layers) == settings.get("layers", 126)
    sizes = dict(plan.mesh.axes)
    shards = sizes["efsdp"] * sizes["ep"] if "ep" in settings else sizes["fsdp"]
    assert (shards, sizes["tp"]) == (settings.get("shards", 64), settings.get("tp", 8))
    assert sizes.get("ep", 1) * sizes["tp"] == settings.get("ep", sizes["tp"])
    assert sizes.get("dp_replicate", 1) == settings.get("replicas", 1)
    assert sizes.get("pp", 1) == settings.get("pp", 1)
    assert sizes.get("mb", 1) == settings.get("microbatches", 1)
    assert (plan.schedule is not None) == ("pp" in settings)
    assert plan.specification.inputs["batch.tokens"].shape[-1] == settings.get("length", 8192)


@pytest.mark.parametrize("name", OURS)
def test_settings_define_the_shipped_plan(name: str) -> None:
    source, plan = recapture.SOURCES[name], load(SHIPPED[name])
    defined: Definition = load_definition(source.path, source.settings)
    assert (defined.name, dict(defined.mesh)) == (name, plan.mesh.space)
    for batch, item in defined.batch.items():
        read = plan.specification.inputs.get(f"batch.{batch}")
        assert read is None or read.shape == item.shape


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-bucket-dp4", "zero1-dp4", "llama-small-clip-accum-tp2-fsdp2"])
def test_a_capture_gives_the_shipped_bytes(name: str, tmp_path: Path) -> None:
    made = recapture.captured(name, tmp_path / "plan.json.gz", jobs=2)
    assert made.row()[0] == name and made.processor > 0
    assert (tmp_path / "plan.json.gz").read_bytes() == SHIPPED[name].read_bytes()


def test_rows_of_captures_replace_those_of_before() -> None:
    page = f"a\n{recapture.BEGIN}{recapture.END}b\n"
    row = ("zero1-dp4", "10", "20", "300", "4", "4", "0")
    once = recapture.told(page, [row])
    assert recapture.published(once) == {"zero1-dp4": row} and once.endswith(f"{recapture.END}b\n")
    other = ("ddp-bucket-dp4", *row[1:])
    newer = (row[0], "11", *row[2:])
    twice = recapture.told(once, [newer, other])
    assert list(recapture.published(twice).values()) == [other, newer]
