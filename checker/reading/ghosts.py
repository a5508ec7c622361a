"""Ghosts: ops that a proof puts behind those of the plan's programs, read as a plan that has them."""

from __future__ import annotations

import json
from typing import Any

from ..errors import need
from ..language.plan import Plan
from .plan import read_plan
from .strict import array, members, read_json


def read_ghosts(value: Any, data: bytes) -> Plan:
    """The plan in these bytes with its ghosts and without its schedule, all of it checked; or `Malformed`.

    Which ops a ghost may be, and that nothing else differs, is obligation 21.
    """
    document = read_json(data, "plan")
    document.pop("schedule", None)
    functions = document.get("functions", {})
    given = members(value, "ghosts", "", "main functions")
    _add(
        given.get("main", {}),
        "ghosts",
        document["specification"],
        {c["name"]: c["program"] for c in document["classes"]},
    )
    for name, programs in members(given.get("functions", {}), "ghosts", "", " ".join(functions)).items():
        _add(programs, f"ghosts of {name}", functions[name]["specification"], functions[name]["classes"])
    return read_plan(json.dumps(document).encode())


def _add(value: Any, what: str, specification: Any, classes: Any) -> None:
    for space, ops in members(value, what, "", " ".join(["s", *classes])).items():
        need(bool(array(ops, what)), f"{what}: none in {space}")
        (specification if space == "s" else classes[space])["ops"] += ops
