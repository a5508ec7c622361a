"""`about.json`: what the maker says of the run. Covered by a signature over the bundle, checked by nobody."""

from __future__ import annotations

from collections.abc import Mapping

from ..reading.strict import members, read_json, text

FIELDS = {
    "who": "made by",
    "when": "made at",
    "commit": "source commit",
    "config": "configuration",
    "image": "container image",
    "launch": "launch fingerprint",
    "dataset": "data set",
    "note": "note",
}
"""Every member of `about.json`, with its words; all are texts, and none must be there."""
FILE = "about.json"


def read_about(bundle: Mapping[str, bytes]) -> dict[str, str]:
    """What the bundle's `about.json` says, in the order of the table; empty without one."""
    if FILE not in bundle:
        return {}
    item = members(read_json(bundle[FILE], "about"), "about", "", " ".join(FIELDS))
    return {name: text(item[name], f"about: {name}") for name in FIELDS if name in item}


def about_lines(about: Mapping[str, str]) -> list[str]:
    return [f"{FIELDS[name]}: {said}" for name, said in about.items()]
