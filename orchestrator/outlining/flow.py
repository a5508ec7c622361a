"""A program seen as *core* ops, in order, and *cheap* ones between them, which are computed anew wherever
they are needed: data movement, literals, casts, work on masks and positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property

import networkx as nx

from certificates.plan.affine import Affine
from certificates.plan.ops import CALL, COLLECTIVES, ELEMENTWISE, MESSAGES
from certificates.plan.program import Op, Program
from certificates.plan.stacks import is_stack

#: Ops that are computed again where they are used, rather than handed over.
CHEAP = frozenset(
    ("constant", "iota", "broadcast_in_dim", "reshape", "transpose", "slice", "convert", "negate", "pad")
)


class Flow:
    """Core ops over *leaves*: inputs and results of core ops.

    ``phases`` are numbers of values: what has a smaller one stands first, and what one phase has made of its
    core results for another is core. What stands ``apart`` is core, and no part of a function.
    """

    def __init__(
        self,
        program: Program,
        phases: Mapping[str, int] | None = None,
        apart: AbstractSet[str] = frozenset(),
    ) -> None:
        self.program = program
        self.phases = phases or {}
        self.apart = apart
        #: Results of collectives that stand outside of the parts of a layer (``packing.py``).
        self.buffers = set[str]()
        self.producer = {op.out: op for op in program.ops}
        self._type = program.types()
        self._closed: dict[str, bool] = {}
        self._signature: dict[str, int] = {}
        self._numbers: dict[object, int] = {}
        self._leaves: dict[str, tuple[str, ...]] = {}
        for op in program.ops:
            self._closed[op.out] = (
                op.name not in COLLECTIVES | MESSAGES
                and op.out not in apart
                and all(self._closed.get(v, False) for v in op.ins)
            )
        self._moved = set(program.inputs)
        for op in program.ops:
            if (op.name in CHEAP or op.name == "concatenate") and self._moved.issuperset(op.ins):
                self._moved.add(op.out)
        joined = {v for op in program.ops if op.name == "concatenate" for v in op.ins}
        crossing = {v for op in program.ops for v in op.ins if self.phases.get(v) != self.phases.get(op.out)}
        self.cheap = set[str]()
        made = set[str]()  # of what core ops have computed
        for op in program.ops:
            if any(v in made or (v in self.producer and v not in self.cheap) for v in op.ins):
                made.add(op.out)
            if not (op.out in made and op.out in crossing) and self._is_cheap(op, op.out in joined):
                self.cheap.add(op.out)
        self.core = self._in_order([op for op in program.ops if op.out not in self.cheap])
        #: Of core results.
        self.position = {op.out: i for i, op in enumerate(self.core)}

    def _is_cheap(self, op: Op, joined: bool) -> bool:
        """``joined``: whether it is a part of a concatenation, which is handed over if it is one itself."""
        if op.name == CALL or op.out in self.apart:
            return False
        if self._closed[op.out] or op.name in CHEAP:
            return True
        if op.name == "concatenate":
            # A flat buffer of parameters shows its parts; nothing could be said of it as a whole.
            return not joined and (not is_stack(op) or all(v in self._moved for v in op.ins))
        if op.name in ELEMENTWISE and all(self._type[v].sort != "Real" for v in (op.out, *op.ins)):
            return True
        literal = [self.producer[v].name == "constant" for v in op.ins if v in self.producer]
        return op.name in ("multiply", "divide") and any(literal)

    def _in_order(self, core: list[Op]) -> list[Op]:
        """As executed, but an all-gather stands before the first op that needs it: frameworks prefetch."""
        first_use: dict[str, float] = {}
        for i, op in reversed(list(enumerate(core))):
            here = first_use.get(op.out, i + 1.0) - 0.5 if op.name == "all_gather" else float(i)
            if op.name == "all_gather":
                first_use[op.out] = here
            for leaf in self.leaves_of(op):
                first_use[leaf] = min(here, first_use.get(leaf, here))
        gathers = {op.out: first_use[op.out] for op in core if op.name == "all_gather"}
        place = {
            op.out: (self.phases.get(op.out, 0), gathers.get(op.out, float(i)), i)
            for i, op in enumerate(core)
        }
        return sorted(core, key=lambda op: place[op.out])

    def leaves(self, value: str) -> tuple[str, ...]:
        """Inputs and core results that a value is made of, each once."""
        for v in self._unknown(value, self._leaves):
            self._leaves[v] = self.leaves_of(self.producer[v]) if v in self.cheap else (v,)
        return self._leaves[value]

    def leaves_of(self, op: Op) -> tuple[str, ...]:
        """Leaves of an op's operands, each once."""
        return tuple(dict.fromkeys(leaf for v in op.ins for leaf in self.leaves(v)))

    @cached_property
    def users(self) -> dict[str, list[str]]:
        """Core results that read each leaf, and outputs."""
        found: dict[str, list[str]] = {}
        for op in self.core:
            for leaf in self.leaves_of(op):
                found.setdefault(leaf, []).append(op.out)
        for name, value in self.program.outputs.items():
            for leaf in self.leaves(value):
                found.setdefault(leaf, []).append(f"output {name}")
        return found

    def token(self, op: Op) -> int:
        """Equal for core ops that do the same with operands that are made alike from their leaves."""
        return self._number((*head(op), tuple(self.signature(v) for v in op.ins)))

    def signature(self, value: str) -> int:
        """Equal for values of one type that are made alike from their leaves."""
        for v in self._unknown(value, self._signature):
            if v in self.cheap:
                self._signature[v] = self.token(self.producer[v])
            else:
                self._signature[v] = self._number(str(self.program.type_of(v)))
        return self._signature[value]

    def _unknown(self, value: str, known: Mapping[str, object]) -> Iterator[str]:
        """A value, what is between it and its leaves, and these, as far as not ``known``; operands first.

        Whoever asks makes each known before the next.
        """
        path = [] if value in known else [(value, self._between(value))]
        while path:
            top, rest = path[-1]
            below = next((v for v in rest if v not in known), None)
            if below is not None:
                path.append((below, self._between(below)))
                continue
            path.pop()
            yield top

    def _between(self, value: str) -> Iterator[str]:
        return iter(self.producer[value].ins if value in self.cheap else ())

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def executed(reads: Iterable[tuple[str, Iterable[str]]], wanted: Iterable[str]) -> Iterator[str]:
    """Values that the wanted ones are made of, and these, each once and behind those that it ``reads``.

    The order depends on that of ``wanted`` and of what is read alone, not on where the code stood.
    """
    graph, end = nx.DiGraph(), object()
    graph.add_node(end)
    graph.add_edges_from((end, value) for value in wanted)
    graph.add_edges_from((value, v) for value, values in reads for v in values)
    return (value for value in nx.dfs_postorder_nodes(graph, end) if value is not end)


def head(op: Op) -> tuple[object, ...]:
    """What an op does. The rendezvous of a collective is left open, as repetitions meet each for itself; a
    message is one of its channel.
    """
    named = op.name in MESSAGES
    attrs = tuple(sorted((k, _plain(v)) for k, v in op.attrs.items() if k != "seq" or named))
    return op.name, str(op.type), attrs


def _plain(value: object) -> str:
    if isinstance(value, Affine):
        return f"affine {value}"
    return f"[{','.join(map(_plain, value))}]" if isinstance(value, tuple) else repr(value)
