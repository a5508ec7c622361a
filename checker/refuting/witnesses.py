"""The witness of a bundle: which output it speaks of, and what the replay shows (obligation 18)."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import need
from ..language.plan import Plan
from ..language.proof import Fact
from ..reading.strict import integer, read_json
from ..rules.relations import relation_facts
from .inline import inline
from .witness import Replay, replay


def witnesses(
    plan: Plan, data: Mapping[str, bytes], claimed: tuple[tuple[Fact, ...], ...]
) -> dict[int, Replay]:
    """Replays the bundle's witness (obligation 18)."""
    if "witness.json" not in data:
        return {}
    witness = read_json(data["witness.json"], "witness")
    need(isinstance(witness, dict), "witness: an object is expected")
    output = integer(witness.get("output"), "witness: output", 0, len(claimed))
    piece = integer(witness.get("piece"), "witness: piece", 0, len(claimed[output]))
    flat = inline(plan)  # calls written out: an output then has another name
    fact = relation_facts(flat, flat.outputs[output], "outputs")[piece]
    return {output: replay(flat, fact, witness)}
