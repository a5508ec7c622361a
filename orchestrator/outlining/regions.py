"""Parts of a program that become calls of functions: core ops over the leaves that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from certificates.plan.ops import COLLECTIVES
from certificates.plan.program import Op

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
    #: Cheap values that are operands of the call, as they stand.
    handed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, flow: Flow, first: int, members: Sequence[str], handed: frozenset[str] = frozenset()) -> Self:
        """The call of these core ops."""
        found = cls(first, tuple(members), handed=handed)
        own = set(members)

        def place(value: str) -> tuple[str, int]:
            if value in found.local:
                return "local", found.local[value]
            if value in flow.cheap and value not in handed:
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

    def beside(self, flow: Flow, first: int, members: Sequence[str]) -> Self | None:
        """The call of core ops that do the same as this one's, to operands that may be made in another way.

        So stands the first or last of a chain of layers: what it is given is no result of another layer.
        """
        handed, own = set[str](), set(members)

        def compare(op: Op, place: int) -> None:
            _, operands = self.ops[place]
            assert isinstance(operands, tuple)
            for value, (kind, n) in zip(op.ins, operands, strict=False):
                if value in flow.cheap and kind == "site" and own.isdisjoint(flow.leaves(value)):
                    handed.add(value)
                elif value in flow.cheap and kind == "local":
                    compare(flow.producer[value], n)

        for mine, other in zip(self.members, members, strict=True):
            compare(flow.producer[other], self.local[mine])
        found = self.of(flow, first, members, frozenset(handed))
        types = [[flow.program.type_of(v) for v in instance.sites] for instance in (self, found)]
        return found if found.ops == self.ops and types[0] == types[1] else None


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
