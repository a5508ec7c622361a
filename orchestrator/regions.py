"""Parts of a program that become calls of functions: core ops over the leaves that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from certificates.ir import COLLECTIVES, Op

from .flow import Flow, head


@dataclass
class Instance:
    """One call: its core ops, all its ops over local names, and the leaf at each site where it reads one.

    ``first`` is the position among the program's core ops where it is called.
    """

    first: int
    members: tuple[str, ...]
    ops: list[tuple[object, ...]] = field(default_factory=list)
    templates: list[Op] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    local: dict[str, int] = field(default_factory=dict)
    seqs: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, flow: Flow, first: int, members: Sequence[str]) -> Self:
        """The call of these core ops."""
        found = cls(first, tuple(members))
        own = set(members)

        def place(value: str) -> tuple[str, int]:
            if value in found.local:
                return "local", found.local[value]
            if value in flow.cheap:
                return emit(flow.producer[value])
            if value in own:
                raise AssertionError(f"{value} is used before it is computed")
            found.sites.append(value)
            return "site", len(found.sites) - 1

        def emit(op: Op) -> tuple[str, int]:
            operands = tuple(place(v) for v in op.ins)
            if op.name in COLLECTIVES:
                found.seqs.append(op.integer("seq"))
            found.local[op.out] = len(found.ops)
            found.ops.append((head(op), operands))
            found.templates.append(op)
            return "local", found.local[op.out]

        for member in members:
            emit(flow.producer[member])
        return found


@dataclass
class Region:
    """The parts of one program that become calls of one function, by label."""

    flow: Flow
    instances: dict[int, Instance]

    def shown(self) -> list[int]:
        """Places of the ops that somebody outside the instance reads, in some instance."""
        found: set[int] = set()
        for instance in self.instances.values():
            own = set(instance.members)
            found |= {instance.local[m] for m in own if not own.issuperset(self.flow.users.get(m, ()))}
        return sorted(found)

    def slots(self) -> list[int]:
        """The function's input for each site: sites that agree in every instance share one."""
        numbers: dict[tuple[str, ...], int] = {}
        width = len(next(iter(self.instances.values())).sites)
        return [
            numbers.setdefault(tuple(i.sites[s] for i in self.instances.values()), len(numbers))
            for s in range(width)
        ]
