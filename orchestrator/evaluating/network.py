"""Rank expansion: a specification and a plan as one pure, hash-consed tensor program.

:class:`Network` holds nodes; a node is an op whose attributes are numbers (every ``axis_index`` resolved) and
whose operands are nodes. Collectives become data movement and sums over explicit lists of members:
``all_gather`` is a concatenation, ``all_reduce`` a ``merge``, ``reduce_scatter`` a slice of a ``merge``,
``all_to_all`` a concatenation of slices. Equal nodes are one node, so ranks that provably compute the same
thing share it, and so do a plan and its mutants when one network serves them all.

:class:`Expansion` maps values of one plan to nodes, on demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from certificates.plan.affine import Affine
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.plan.types import Sort, TensorType

from ..errors import EvaluationError, OutOfTime

#: Steps that count as a second: about what a core of a server does.
SPEED = 100_000
#: Attributes of a node, fixed per op; see :meth:`Network.local`.
Attrs = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One tensor: op, operand nodes, resolved attributes, sort and shape."""

    op: str
    ins: tuple[int, ...]
    attrs: Attrs
    sort: Sort
    shape: tuple[int, ...]


@dataclass
class Work:
    """Steps that were done, and the most that may be: every machine gives up at the same one.

    A step is a visit of a value or of a node, or so many cells of a grid that numpy computes.
    """

    steps: int = 0
    last: float = math.inf

    def tick(self, steps: int = 1) -> None:
        """Raises :class:`OutOfTime` after the last step."""
        self.steps += steps
        if self.steps > self.last:
            raise OutOfTime(f"after {self.steps} steps")


@dataclass
class Network:
    """All nodes made so far; equal nodes have one number. ``work`` is the work on them, or on several."""

    nodes: list[Node] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    _index: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """The number of a node; ops that change nothing return their operand."""
        if len(node.ins) == 1 and self._is_identity(node):
            return node.ins[0]
        number = self._index.get(node)
        if number is None:
            number = self._index[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    def _is_identity(self, node: Node) -> bool:
        operand = self.nodes[node.ins[0]]
        if operand.shape != node.shape or operand.sort != node.sort:
            return False
        return (
            node.op in ("convert", "reshape", "concatenate", "merge")
            or (node.op == "broadcast_in_dim" and node.shape == operand.shape)
            or (node.op == "transpose" and node.attrs == tuple(range(len(node.shape))))
            or (node.op == "slice" and all(a == 0 and b == 1 for a, b in node.attrs))
        )

    def local(self, op: Op, ins: tuple[int, ...], at: Mapping[str, int]) -> int:
        """The node of an op without communication at mesh coordinates ``at``."""
        attrs: Attrs
        match op.name:
            case "constant":
                attrs = (literal(op, at),)
            case "iota" | "concatenate":
                attrs = (op.integer("dim"),)
            case "compare":
                attrs = (op.text("direction"),)
            case "broadcast_in_dim":
                attrs = op.ints("dims")
            case "transpose":
                attrs = op.ints("perm")
            case "slice":
                starts = (f.evaluate(at) for f in op.affines("start"))
                attrs = tuple(zip(starts, op.ints("stride"), strict=True))
            case "pad":
                attrs = op.ints("low")
            case "dot_general":
                attrs = tuple(op.ints(k) for k in ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"))
            case "reduce":
                attrs = (op.text("kind"), op.ints("dims"))
            case "gather":
                attrs = (op.integer("axis"), op.integer("batch_dims"))
            case _:
                attrs = ()
        return self.add(Node(op.name, ins, attrs, op.type.sort, op.type.shape))

    def piece(self, x: int, dim: int, number: int, size: int) -> int:
        """Piece ``number`` of length ``size`` along ``dim``."""
        node = self.nodes[x]
        shape = tuple(size if d == dim else n for d, n in enumerate(node.shape))
        starts = tuple((number * size if d == dim else 0, 1) for d in range(len(shape)))
        return self.add(Node("slice", (x,), starts, node.sort, shape))


def literal(op: Op, at: Mapping[str, int]) -> Fraction | int | bool | str:
    """The exact value of a ``constant`` at a rank; infinities stay strings."""
    value, sort = op.attrs["value"], op.type.sort
    if isinstance(value, Affine):
        number = value.evaluate(at)
        return number if sort == "Int" else Fraction(number)
    if not isinstance(value, str):
        raise EvaluationError(f"constant {op.out} has no literal")
    if sort == "Bool":
        return value == "true"
    if value in ("inf", "-inf"):
        return value
    return int(value) if sort == "Int" else Fraction(value)


class Expansion:
    """Nodes of the values of one plan in a network, made on demand.

    ``spec_input(name, type)`` and ``plan_input(class, rank, name, type)`` supply the nodes of inputs.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network,
        spec_input: Callable[[str, TensorType], int],
        plan_input: Callable[[str, int, str, TensorType], int],
    ) -> None:
        self.plan, self.network = plan, network
        self._spec_input, self._plan_input = spec_input, plan_input
        self._class_of: dict[int, str] = {}
        self._coordinates: dict[int, dict[str, int]] = {-1: {}}
        self._group_of: dict[str, list[tuple[int, ...]]] = {}
        self._made: dict[tuple[int, str], int] = {}

    @cached_property
    def _ops(self) -> dict[str, dict[str, Op]]:
        programs = {c.name: c.program for c in self.plan.classes} | {"s": self.plan.specification}
        return {owner: {op.out: op for op in program.ops} for owner, program in programs.items()}

    def take(self, other: Expansion, changed: Mapping[str, Container[str]]) -> None:
        """Take over the nodes that the expansion of another plan has made, in this network and on the same
        inputs, but for values that are other ones here (``changed``, by class)."""
        self._made.update({
            (rank, name): node for (rank, name), node in other._made.items()
            if name not in changed.get(self.class_of(rank), ())
        })  # fmt: skip

    def class_of(self, rank: int) -> str:
        """Name of the rank class; ``"s"`` for the specification, which is rank -1."""
        if rank < 0:
            return "s"
        found = self._class_of.get(rank)
        if found is None:
            found = self._class_of[rank] = self.plan.class_of(self.coordinates(rank)).name
        return found

    def coordinates(self, rank: int) -> dict[str, int]:
        """Mesh coordinates of a rank; none for the specification."""
        found = self._coordinates.get(rank)
        if found is None:
            found = self._coordinates[rank] = self.plan.mesh.coordinates(rank)
        return found

    def program(self, rank: int) -> Program:
        name = self.class_of(rank)
        return self.plan.specification if name == "s" else self.plan.by_class[name].program

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """The ordered rank list of a group that holds ``rank``."""
        table = self._group_of.get(group)
        if table is None:
            table = [()] * self.plan.mesh.points
            for ranks in self.plan.groups[group].lists(self.plan.mesh):
                for r in ranks:
                    table[r] = ranks
            self._group_of[group] = table
        return table[rank]

    def op(self, rank: int, name: str) -> Op | None:
        """The op behind a value, or ``None`` where the program takes it as given."""
        return self._ops[self.class_of(rank)].get(name)

    def value(self, rank: int, name: str) -> int:
        """Node of a value at a rank (rank -1: of the specification). Iterative: programs are deep.

        Raises :class:`EvaluationError` when collectives wait for one another in a circle, :class:`OutOfTime`.
        """
        made, stack, waiting = self._made, [(rank, name)], set()
        while stack:
            self.network.work.tick()
            here = stack[-1]
            if here in made:
                stack.pop()
                continue
            at, value = here
            op = self.op(at, value)
            if op is None:
                made[here] = self._input(at, value)
                continue
            needs = self._operands(at, op)
            missing = [n for n in needs if n not in made]
            if missing:
                if here in waiting:
                    raise EvaluationError(f"{op.name} {value} waits for itself")
                waiting.add(here)
                stack.extend(reversed(missing))
                continue
            ins = tuple(made[n] for n in needs)
            made[here] = (
                ins[0]
                if op.name in MESSAGES
                else self._collective(op, at, ins)
                if op.name in COLLECTIVES
                else self.network.local(op, ins, self.coordinates(at))
            )
        return made[rank, name]

    def _input(self, rank: int, name: str) -> int:
        type_ = self.program(rank).inputs[name]
        if rank < 0:
            return self._spec_input(name, type_)
        return self._plan_input(self.class_of(rank), rank, name, type_)

    def _operands(self, rank: int, op: Op) -> list[tuple[int, str]]:
        if op.name == "recv":
            source = self.plan.sender(op, self.coordinates(rank))
            return [(source, self.plan.meets(op)[self.class_of(source)].ins[0])]
        if op.name not in COLLECTIVES:
            return [(rank, v) for v in op.ins]
        ops = self.plan.rendezvous(op.integer("seq"))
        return [(r, ops[self.class_of(r)].ins[0]) for r in self.members(op.text("group"), rank)]

    def _collective(self, op: Op, rank: int, ins: tuple[int, ...]) -> int:
        """``ins`` are the operands of all members, in group order."""
        net, sort, shape = self.network, op.type.sort, op.type.shape
        place = self.members(op.text("group"), rank).index(rank)
        match op.name:
            case "all_gather":
                return net.add(Node("concatenate", ins, (op.integer("dim"),), sort, shape))
            case "all_reduce":
                return net.add(Node("merge", tuple(sorted(ins)), (op.text("kind"),), sort, shape))
            case "reduce_scatter":
                whole = net.nodes[ins[0]].shape
                total = net.add(Node("merge", tuple(sorted(ins)), (op.text("kind"),), sort, whole))
                dim = op.integer("dim")
                return net.piece(total, dim, place, shape[dim])
            case "all_to_all":
                split = op.integer("split_dim")
                size = net.nodes[ins[0]].shape[split] // len(ins)
                parts = tuple(net.piece(x, split, place, size) for x in ins)
                return net.add(Node("concatenate", parts, (op.integer("concat_dim"),), sort, shape))
            case name:
                raise EvaluationError(f"op {name!r} is not a collective of the op table")
