"""Ghosts, the member ``ghosts`` of ``proof.json``: ops that a proof puts behind those of the programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..plan.program import Op, op_from_json, op_to_json
from ..shapes import as_list, as_object

#: By function, which is empty for the main programs, and by program: ``s`` or a class, or a role.
Ghosts = Mapping[str, Mapping[str, Sequence[Op]]]


def ghosts_json(ghosts: Ghosts) -> dict[str, object]:
    def programs(of: Mapping[str, Sequence[Op]]) -> dict[str, object]:
        return {owner: [op_to_json(op) for op in ops] for owner, ops in of.items()}

    functions = {name: programs(of) for name, of in ghosts.items() if name}
    main = {"main": programs(ghosts[""])} if "" in ghosts else {}
    return {**main, **({"functions": functions} if functions else {})}


def ghosts_from_json(data: object) -> Ghosts:
    """Raises :class:`FormatError`; types are not checked here."""

    def programs(of: object) -> dict[str, list[Op]]:
        named = as_object(of, "ghosts", list(of) if isinstance(of, dict) else [])
        return {owner: [op_from_json(op) for op in as_list(ops, "ghosts")] for owner, ops in named.items()}

    known = [k for k in ("main", "functions") if isinstance(data, dict) and k in data]
    raw = as_object(data, "ghosts", known)
    functions = raw.get("functions", {})
    named = as_object(functions, "ghosts", list(functions) if isinstance(functions, dict) else [])
    main = {"": programs(raw["main"])} if "main" in raw else {}
    return main | {name: programs(of) for name, of in named.items()}
