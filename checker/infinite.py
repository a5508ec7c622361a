"""Infinite literals (obligation 2): where they may go, so that docs/theory.md, section 8, speaks of IEEE."""

from __future__ import annotations

from .errors import Rejected
from .reader import Plan, Program

MOVES = frozenset(("broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate", "gather",
                   "all_gather", "all_to_all", "select", "maximum", "minimum", "convert"))


def infinities(plan: Plan, prefix: str) -> list[str]:
    """Obligation 2 for all programs; a collective passes infinities on to every class that takes part."""
    meets: dict[int, set[int]] = {}
    before = -1
    while before != len(meets):
        before = len(meets)
        notes = _infinite(f"{prefix}specification", plan.spec, meets)
        for cls in plan.classes.values():
            notes += _infinite(f"{prefix}class {cls.name}", cls.program, meets)
    return notes


def _infinite(name: str, program: Program, meets: dict[int, set[int]]) -> list[str]:
    """Follows infinite literals to `exponential`; gives the assumptions that no row is masked."""
    sign: dict[str, int] = {}
    notes = []
    for op in program.ops:
        found = [sign.get(o, 0) for o in op.operands]
        where = f"{name}, op {op.result}"
        if "seq" in op.attrs:
            signs = meets.get(op.attrs["seq"], set()) | {s for s in found if s}
            if len(signs) > 1:
                raise Rejected(2, f"both signs of infinity meet at rendezvous {op.attrs['seq']}", where)
            if signs:
                meets[op.attrs["seq"]], found = signs, [*signs]
        if op.name == "constant" and op.attrs["value"] in ("inf", "-inf"):
            sign[op.result] = -1 if op.attrs["value"] == "-inf" else 1
        if not any(found):
            continue
        one = next(s for s in found if s)
        kind = op.attrs.get("kind", "")
        if op.name in MOVES and all(s in (0, one) for s in found):
            sign[op.result] = one
        elif op.name in ("reduce", "all_reduce") and (kind, one) in (("max", -1), ("min", 1)):
            notes.append(f"{name}: no row that {op.result} ({op.name} {kind}) reduces is completely masked")
        elif op.name == "negate" or (op.name in ("add", "subtract") and not all(found)):
            sign[op.result] = -one if op.name == "negate" or (op.name == "subtract" and found[1]) else one
        elif op.name != "exponential" or one > 0:
            raise Rejected(2, f"an infinite literal reaches {op.name}, which is outside the model", where)
    for output, value in program.outputs.items():
        if value in sign:
            raise Rejected(2, f"output {output} may be infinite", name)
    return notes
