"""Plans are written in one way, and what is written is read back."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.canonical import digest, read_bytes
from certificates.plan.plan import Plan
from certificates.plan.reading import load, loads
from certificates.plan.writing import dump, dumps


def test_plans_round_trip(any_plan: Plan) -> None:
    data = dumps(any_plan)
    assert loads(data) == any_plan
    assert dumps(loads(data)) == data


def test_bytes_do_not_depend_on_the_order_of_mappings(mlp: Plan) -> None:
    turned = Plan(
        **{f: getattr(mlp, f) for f in ("name", "mesh", "sources", "specification", "classes")},
        groups=dict(reversed(list(mlp.groups.items()))),
        inputs=mlp.inputs,
        outputs=mlp.outputs,
        given=mlp.given,
    )
    assert dumps(turned) == dumps(mlp)
    assert dumps(mlp).endswith(b"}\n") and b": " not in dumps(mlp)


def test_gzip_is_deterministic_and_has_the_digest_of_the_document(mlp: Plan, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz", "c.json"):
        dump(mlp, tmp_path / name)
    a, b, c = ((tmp_path / n).read_bytes() for n in ("a.json.gz", "b.json.gz", "c.json"))
    assert a == b and gzip.decompress(a) == c == dumps(mlp)
    assert load(tmp_path / "a.json.gz") == load(tmp_path / "c.json") == mlp
    assert digest(read_bytes(tmp_path / "a.json.gz")) == digest(c)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz", "c.json"]


STEPS: list[Callable[[ProgramBuilder, Value], Value]] = [
    lambda b, x: x + x,
    lambda b, x: x * 3,
    lambda b, x: b.tanh(x) / 7,
    lambda b, x: x.T,
    lambda b, x: x.reshape(x.type.size, 1),
    lambda b, x: x.reshape(1, x.type.size),
    lambda b, x: x @ x.T,
    lambda b, x: b.pad(x, (1, 0), (0, 2), -1),
    lambda b, x: x[::2],
    lambda b, x: b.concatenate([x, x], 0),
    lambda b, x: x.sum(1).like(x, 0),
    lambda b, x: b.select(b.compare(x, 0, "GT"), x, -x),
    lambda b, x: b.convert(b.convert(x, "bf16"), "f32"),
]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=6),
    rows=st.integers(1, 4),
    name=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
    notes=st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.lists(st.text(max_size=3))),
    mesh=st.dictionaries(st.sampled_from(["dp", "tp", "cp"]), st.integers(1, 3), max_size=3),
)
def test_random_plans_round_trip(
    steps: list[Any], rows: int, name: str, notes: dict[str, Any], mesh: dict[str, int]
) -> None:
    builders = ProgramBuilder(), ProgramBuilder(mesh)
    for b in builders:
        x = b.input("x", f"f32[{rows},3]")
        for step in steps:
            x = step(b, x)
        b.output("y", x)
    plan = build_plan(
        name=name,
        mesh=mesh,
        specification=builders[0].build(),
        classes=builders[1].build(),
        inputs={"x": {}},
        outputs={"y": {}},
        provenance=notes,
    )
    assert loads(dumps(plan)) == plan
    assert dumps(loads(dumps(plan))) == dumps(plan)
