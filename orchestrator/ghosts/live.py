"""What outputs are made of where ghosts take the place of what they equal: the rest needs no relation."""

from __future__ import annotations

from certificates.plan.ops import CALL, COLLECTIVES, MESSAGES
from smtlib_emit.model import Model

from ..relating.ledger import Ledger

_MEETS = frozenset((CALL, *COLLECTIVES, *MESSAGES))


def live(model: Model, ledger: Ledger) -> frozenset[str]:
    """The tensors that an output, a call, or another rank may need."""
    programs = {"s": model.plan.specification} | {c.name: c.program for c in model.plan.classes}
    work = [f"{owner}:{v}" for owner, program in programs.items() for v in program.outputs.values()]
    work += [ref for ref, op in model.ops.items() if op.name in _MEETS]
    found = set[str]()
    while work:
        ref = work.pop()
        if ref in found:
            continue
        found.add(ref)
        if ref in model.ops:
            work += ledger.below(ref)
    return frozenset(found)
