"""The published JSON Schema: it is the generated one, accepts dumps, and refuses what the reader refuses."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from certificates.canonical import canonical_bytes, read_bytes
from certificates.errors import FormatError
from certificates.plan.ops import ATTRS, PACKED
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.schema import PUBLISHED, plan_schema, schema_text
from certificates.plan.writing import dumps

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))


def test_the_published_file_is_the_generated_schema() -> None:
    assert PUBLISHED.read_text() == schema_text(), "write schema_text() to certificates/plan.schema.json"
    jsonschema.Draft202012Validator.check_schema(plan_schema())


def test_the_schema_is_packaged() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert PUBLISHED.relative_to(ROOT).parts[0] in wheel["only-include"]
    excluded = [*wheel.get("exclude", []), *(ROOT / ".gitignore").read_text().split()]
    assert not any(PUBLISHED.match(pattern) for pattern in excluded)


def test_dumps_are_valid(any_plan: Plan, validator: Any) -> None:
    validator.validate(json.loads(dumps(any_plan)))


def test_a_shipped_plan_is_valid(validator: Any) -> None:
    validator.validate(json.loads(read_bytes(ROOT / "examples" / "mlp-handwritten.json.gz")))


def test_the_op_table_is_covered() -> None:
    alternatives = plan_schema()["$defs"]["op"]["anyOf"]  # type: ignore[index]
    names = [name for alternative in alternatives for name in alternative["prefixItems"][1]["enum"]]
    assert sorted(names) == sorted({**ATTRS, **PACKED})


def op(index: int, position: int, value: object) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        document["specification"]["ops"][index][position] = value

    return edit


def piece(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        document["inputs"][0]["pieces"][0][key] = value

    return edit


MALFORMED: list[Callable[[dict[str, Any]], object]] = [
    lambda d: d.pop("mesh"),
    lambda d: d.update(extra=1),
    lambda d: d.update(version=5),
    lambda d: d.update(classes=[]),
    lambda d: d["mesh"].append(["pp", 0]),
    lambda d: d["groups"].update(g={"axes": [], "ranks": []}),
    lambda d: d["specification"]["inputs"].append(["1x", "f32[]"]),
    lambda d: d["specification"]["ops"][0].pop(),
    lambda d: d["inputs"][0].update(pieces=[]),
    lambda d: d["inputs"][0].update(coef="0.5"),
    lambda d: d["inputs"][0].update(reduce=["mul", ["dp"]]),
    op(0, 0, "x"),
    op(0, 1, "einsum"),
    op(0, 3, "f32[0]"),
    op(0, 3, "f31[2]"),
    op(0, 4, {}),
    op(1, 4, {"dim": 0}),
    op(1, 5, [0, 1]),
    piece("plan", [True, 0]),
    piece("plan", [{"": 3}, 0]),
    piece("plan", [{"z0": 0}, 0]),
    piece("sizes", [0, 4]),
    lambda d: d.update(given=[]),
    lambda d: d.update(constants={}),
    lambda d: d.update(given=["batch.x", "batch.x"]),
    lambda d: d.update(constants=["1x"]),
]


@pytest.mark.parametrize("change", MALFORMED, ids=range(len(MALFORMED)))
def test_schema_and_reader_refuse_the_same(
    mlp: Plan, validator: Any, change: Callable[[dict[str, Any]], object]
) -> None:
    document = json.loads(dumps(mlp))
    change(document)
    assert not validator.is_valid(document)
    with pytest.raises(FormatError):
        loads(canonical_bytes(document))
