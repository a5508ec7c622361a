"""Both sides around the first tensor that differs, for a refuted output."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ..language.ops import COLLECTIVES, Op
from ..language.plan import Plan
from ..language.proof import Tensor
from .findings import Findings
from .pictures import Node, graph_svg

DEEP, MOST = 3, 14
NAMED = re.compile(r"`([a-z_]+) (%\d+|[A-Za-z_][\w.]*)`")


def both_sides(found: Findings, output: int) -> tuple[str, str, str]:
    """The graph of the specification, that of the plan, and how the plan's tensor was chosen."""
    plan, relation = found.plan, found.plan.outputs[output]
    space, value, how = _centre(found, output)
    left = graph(plan, "s", plan.spec.outputs[relation.spec], _related(found, right=True))
    return left, graph(plan, space, value, _related(found, right=False)), how


def _centre(found: Findings, output: int) -> tuple[str, str, str]:
    """What the maker's diagnosis points at, if there is such a tensor; else the output itself."""
    plan, relation = found.plan, found.plan.outputs[output]
    for name, value in NAMED.findall(found.examined.manifest.verdicts[output][3]):
        made = {c: cls.program.producers.get(value) for c, cls in plan.classes.items()}
        for space in (c for c, op in made.items() if op is not None and op.name == name):
            return space, value, "the tensor that the maker's diagnosis points at, which nobody checked"
    space = relation.pieces[0].cls if relation.pieces else next(iter(plan.classes))
    return space, plan.classes[space].program.outputs[relation.plan], "the output"


def _related(found: Findings, right: bool) -> dict[Tensor, str]:
    """Tensors of proved facts, and those that are known only as a sum over ranks."""
    known: dict[Tensor, str] = {}
    for fact in found.examined.known:
        side = fact.rhs if right else fact.lhs
        if isinstance(side, Tensor):
            known[side] = "proved"
        else:
            for member in side.of:
                known.setdefault(member, "reduced")
    return known


def graph(plan: Plan, space: str, value: str, known: dict[Tensor, str]) -> str:
    """A few generations of operands of a tensor, with what is proved of them."""
    program = plan.program(space)
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str]] = []
    generation = [value]
    for depth in range(DEEP + 1):
        above: dict[str, None] = {}
        for name in generation:
            if name in nodes or len(nodes) >= MOST:
                continue
            op = program.producers.get(name)
            state = "wrong" if not nodes else known.get(Tensor(space, name), "open")
            nodes[name] = Node(*_words(plan, name, op, space), state)
            if depth < DEEP and op is not None:
                for operand in dict.fromkeys(op.operands):
                    edges.append((operand, name))
                    above[operand] = None
        generation = list(above)
    kept = [(a, b) for a, b in edges if a in nodes and b in nodes]
    side = "the single-device model" if space == "s" else f"rank class {space}"
    return graph_svg(f"How {value} is computed in {side}", nodes, kept, value)


def _words(plan: Plan, name: str, op: Op | None, space: str) -> tuple[str, str]:
    kind = plan.program(space).types[name]
    if op is None:
        return name, f"input {kind}"
    group = f" over {' '.join(plan.groups[op.attrs['group']].axes)}" if op.name in COLLECTIVES else ""
    place = f" {PurePosixPath(plan.sources[op.source[0]]).name}:{op.source[1]}" if op.source else ""
    what = op.attrs["function"] if op.name == "call" else f"{op.name}{group}"
    return f"{name} {what}", f"{kind}{place}"
