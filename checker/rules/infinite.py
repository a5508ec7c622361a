"""Infinite literals (obligation 2): where they may go, so that docs/theory.md, section 8, speaks of IEEE."""

from __future__ import annotations

from ..errors import Masked, Rejected
from ..language.ops import MESSAGES, Op, named
from ..language.plan import Plan, Program
from .masks import Masks

MOVES = named("infinity", "moves")


def infinities(plan: Plan) -> list[str]:
    """Obligation 2 for all programs; gives the assumption that no row is masked where constants leave it."""
    notes: list[str] = []
    for function, body in {"": plan, **plan.functions}.items():
        notes += _body(plan, function, body)
    return notes


def _body(plan: Plan, function: str, body: Plan) -> list[str]:
    """All programs of a plan or function; a collective passes infinities on to all classes that take part."""
    programs = {"s": body.spec} | {c: cls.program for c, cls in body.classes.items()}
    prefix = f"function {function}, " if function else ""
    names = {s: prefix + ("specification" if s == "s" else f"class {s}") for s in programs}
    meets: dict[int, set[int]] = {}
    before = -1
    while before != len(meets):
        before = len(meets)
        found = {s: _infinite(names[s], program, meets) for s, program in programs.items()}
    masks = {s: Masks(plan, function, s, signs.keys()) for s, (signs, _) in found.items()}
    notes = []
    for space, (_, rows) in found.items():
        for op in rows:
            if op.name == "reduce":
                masked = masks[space].masked(op)
            else:  # an entry is a rank's: finite everywhere, or at no rank of any class
                seen = masks[space].everywhere(op)
                others = [masks[c].everywhere(o) for c, o in body.rendezvous[op.attrs["seq"]].items()]
                masked = False if seen is False else True if all(others) else None
            said = f"{op.result} ({op.name} {op.attrs['kind']})"
            if masked:
                raise Masked(
                    2,
                    f"constants mask a whole row that {said} reduces, in every run: the claim would "
                    "assume what is never true",
                    names[space],
                )
            if masked is None:
                notes.append(f"{names[space]}: no row that {said} reduces is completely masked")
    return notes


def _infinite(name: str, program: Program, meets: dict[int, set[int]]) -> tuple[dict[str, int], list[Op]]:
    """Follows infinite literals to `exponential`; gives their signs, and the ops that must not be masked."""
    sign: dict[str, int] = {}
    rows = []
    for op in program.ops:
        found = [sign.get(o, 0) for o in op.operands]
        where = f"{name}, op {op.result}"
        if "seq" in op.attrs:
            signs = meets.get(op.attrs["seq"], set()) | {s for s in found if s}
            if len(signs) > 1:
                what = "message" if op.name in MESSAGES else "rendezvous"
                raise Rejected(2, f"both signs of infinity meet at {what} {op.attrs['seq']}", where)
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
            rows.append(op)
        elif op.name == "negate" or (op.name in ("add", "subtract") and not all(found)):
            sign[op.result] = -one if op.name == "negate" or (op.name == "subtract" and found[1]) else one
        elif op.name != "exponential" or one > 0:
            raise Rejected(2, f"an infinite literal reaches {op.name}, which is outside the model", where)
    for output, value in program.outputs.items():
        if value in sign:
            raise Rejected(2, f"output {output} may be infinite", name)
    return sign, rows
