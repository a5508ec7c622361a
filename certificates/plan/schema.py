"""The JSON Schema of plan files, generated from the op table so that the two cannot drift apart.

``plan.schema.json`` beside this module is the published copy (a test compares them). The schema speaks of
syntax; types, ranges and references are :func:`.checking.check_plan`'s.
"""

from __future__ import annotations

import json
from pathlib import Path

from certificates.plan.plan import FORMAT, VERSIONS

from .ops import ATTRS, CALL, PACKED
from .types import MAX_RANK, SORTS

Schema = dict[str, object]
PUBLISHED = Path(__file__).with_name("plan.schema.json")

_RATIONAL = "^-?(0|[1-9][0-9]{0,399})(/[1-9][0-9]{0,399})?$"
_NAME = "[A-Za-z_][A-Za-z0-9_.]*"


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def _tuple(*items: Schema) -> Schema:
    return {"type": "array", "prefixItems": list(items), "items": False, "minItems": len(items)}


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
    }


def _call() -> Schema:
    """``[[results], "call", [operands], function, instance]``."""
    names = _list({"type": "string"})
    return _tuple(
        _list({"type": "string"}, minItems=1), {"const": CALL}, names, _ref("symbol"), _ref("natural")
    )


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _attribute(kind: str | tuple[str, ...]) -> Schema:
    if isinstance(kind, tuple):
        return {"enum": list(kind)}
    kinds: dict[str, Schema] = {
        "int": _ref("natural"),
        "str": {"type": "string"},
        "value": {"anyOf": [_ref("rational"), {"enum": ["true", "false", "inf", "-inf"]}, _ref("affine")]},
        "ints": _list(_ref("natural"), maxItems=MAX_RANK),
        "affines": _list(_ref("affine"), maxItems=MAX_RANK),
    }
    return kinds[kind]


def _op() -> Schema:
    """One alternative per set of attributes, so that the table stays readable."""
    names: dict[str, list[str]] = {}
    attributes: dict[str, Schema] = {}
    for name, attrs in sorted({**ATTRS, **{op: attrs for op, (_, attrs) in PACKED.items()}}.items()):
        schema = _object(**{key: _attribute(kind) for key, kind in sorted(attrs.items())})
        key = json.dumps(schema, sort_keys=True)
        names.setdefault(key, []).append(name)
        attributes[key] = schema
    location: Schema = {"anyOf": [{"type": "null"}, _tuple(_ref("natural"), _ref("natural"), _ref("text"))]}
    return {
        "anyOf": [
            _tuple(
                {"type": "string", "pattern": "^%(0|[1-9][0-9]{0,9})$"},
                {"enum": alike},
                _list({"type": "string"}),
                _ref("type"),
                attributes[key],
                location,
            )
            for key, alike in names.items()
        ]
    }


def _schedule() -> Schema:
    """Segments per class, what happens once, and the events of every lane."""
    number = _ref("natural")
    item = _tuple({"enum": ["send", "recv", "meet"]}, number, number)
    events: list[Schema] = [
        _tuple({"const": "run"}, _ref("name"), number),
        _tuple({"enum": ["now", "post"]}, _ref("name"), _list(item, minItems=1)),
        _tuple({"const": "wait"}, number),
    ]
    lane = _object(
        name=_ref("name"),
        box=_map(_ref("range")),
        events=_list({"anyOf": events}),
        slots=_list(_tuple({"type": "string"}, {"type": "string"}, number, {**number, "minimum": 1})),
    )
    return _object(
        segments=_map(_map(_list(_ref("range")))),
        once=_map(_list({"anyOf": [_ref("name"), number]})),
        lanes=_list(lane, minItems=1),
    )


def plan_schema() -> Schema:
    """The schema (2020-12) as plain data."""
    piece: dict[str, Schema] = {
        "class": {"type": "string"},
        "sizes": _list({"type": "integer", "minimum": 1}),
        "plan": _list(_ref("affine"), maxItems=MAX_RANK),
        "spec": _list(_ref("affine"), maxItems=MAX_RANK),
    }
    reduce = _tuple({"enum": ["add", "max", "min"]}, _list({"type": "string"}, minItems=1))
    relation = _object(
        spec={"type": "string"},
        plan={"type": "string"},
        coef=_ref("rational"),
        reduce={"anyOf": [{"type": "null"}, reduce]},
        pieces=_list(_ref("piece"), minItems=1),
    )
    program = _object(
        inputs=_list(_tuple(_ref("name"), _ref("type"))),
        ops=_list({"anyOf": [_ref("op"), _ref("call")]}),
        outputs=_list(_tuple(_ref("name"), {"type": "string"})),
    )
    definitions: Schema = {
        "natural": {"type": "integer", "minimum": 0, "exclusiveMaximum": 10**18},
        "symbol": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$", "maxLength": 200},
        "text": {"type": "string", "pattern": "^[ -~]{0,200}$"},
        "name": {"type": "string", "pattern": f"^{_NAME}$"},
        "rational": {"type": "string", "pattern": _RATIONAL},
        "type": {
            "type": "string",
            "pattern": f"^({'|'.join(SORTS)})\\[([1-9][0-9]{{0,11}}(,[1-9][0-9]{{0,11}})*)?\\]$",
        },
        "affine": {
            "description": "An integer, or its constant under the empty key and a coefficient per symbol.",
            "anyOf": [
                {"type": "integer"},
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {"type": "integer", "not": {"const": 0}},
                    "not": {"required": [""], "maxProperties": 1},
                },
            ],
        },
        "range": _tuple(_ref("natural"), _ref("natural")),
        "op": _op(),
        "call": _call(),
        "program": program,
        "piece": _object(**piece),
        "relation": relation,
    }
    axes, size = _list({"type": "string"}), {"type": "integer", "minimum": 1}
    lists = _list(_list(_ref("natural"), minItems=1), minItems=1)
    group: Schema = {"anyOf": [_object(axes=axes, ranks=lists), _object(axes=axes)]}
    rank_class = _object(name=_ref("symbol"), box=_map(_ref("range")), program=_ref("program"))
    document = _object(
        format={"const": FORMAT},
        version={"enum": list(VERSIONS)},
        name=_ref("text"),
        mesh=_list(_tuple(_ref("symbol"), size)),
        groups=_map(group),
        sources=_list(_ref("text")),
        specification=_ref("program"),
        classes=_list(rank_class, minItems=1),
        inputs=_list(_ref("relation")),
        outputs=_list(_ref("relation")),
        ranges=_map(_tuple({"type": "integer"}, {"type": "integer"})),
        provenance={"type": "object"},
    )
    bodies = {"specification": _ref("program"), "classes": _map(_ref("program"))}
    along = _list(_ref("symbol"), minItems=1)
    sliced = _object(**bodies, along=along, roles=_map(_map(_ref("range"))))
    function: Schema = {"anyOf": [_object(**bodies), sliced]}
    properties = document["properties"]
    assert isinstance(properties, dict)
    properties["functions"] = {**_map(function), "minProperties": 1}
    names = {**_list(_ref("name"), minItems=1), "uniqueItems": True}
    properties |= {"given": names, "constants": names}
    properties["schedule"] = _schedule()
    properties["time"] = _list(_tuple(_ref("symbol"), size), minItems=1)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "TrainVerify plan",
        "description": "docs/format.md explains every part.",
        **document,
        "$defs": definitions,
    }


def schema_text() -> str:
    """The published file's text."""
    return json.dumps(plan_schema(), indent=1, sort_keys=True) + "\n"
