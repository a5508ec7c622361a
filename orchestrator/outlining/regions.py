"""Parts of a program that become calls of functions: core ops over the leaves that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from certificates.plan.ops import COLLECTIVES
from certificates.plan.program import Op
from certificates.plan.types import TensorType

from .flow import Flow, head

#: In place of an op's: the first operand.
BACK = -1


class _Waiting:
    """An op whose operands are being placed."""

    def __init__(self, op: Op) -> None:
        self.op, self.rest = op, iter(op.ins)
        self.operands: list[tuple[str, int]] = []


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
    #: Types of what is read at each site.
    types: list[TensorType] = field(default_factory=list)
    #: Cheap values that are operands of the call, as they stand.
    handed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, flow: Flow, first: int, members: Sequence[str], handed: frozenset[str] = frozenset()) -> Self:
        """The call of these core ops."""
        found = cls(first, tuple(members), handed=handed)
        own = set(members)
        for member in members:
            path = [_Waiting(flow.producer[member])]
            while path:
                top = path[-1]
                value = next(top.rest, None)
                if value is None:
                    path.pop()
                    found._put(top.op, tuple(top.operands))
                    if path:
                        path[-1].operands.append(("local", found.local[top.op.out]))
                elif value in found.local:
                    top.operands.append(("local", found.local[value]))
                elif value in flow.cheap and value not in handed:
                    path.append(_Waiting(flow.producer[value]))
                elif value in own:
                    raise AssertionError(f"{value} is used before it is computed")
                else:
                    top.operands.append(("site", len(found.sites)))
                    found.sites.append(value)
                    found.types.append(flow.program.type_of(value))
        return found

    def _put(self, op: Op, operands: tuple[tuple[str, int], ...]) -> None:
        if op.name in COLLECTIVES:
            self.seqs.append(op.integer("seq"))
        self.local[op.out] = len(self.ops)
        self.ops.append((head(op), operands))
        self.templates.append(op)

    def beside(self, flow: Flow, first: int, members: Sequence[str]) -> Self | None:
        """The call of core ops, of this program or another, that do the same as this one's, to operands that
        may be made in another way.

        So stands the first or last of a chain of layers: what it is given is no result of another layer.
        """
        handed, own = set[str](), set(members)
        compared = [(other, self.local[mine]) for mine, other in zip(self.members, members, strict=True)]
        known = set(compared)
        for value, place in compared:
            _, operands = self.ops[place]
            assert isinstance(operands, tuple)
            for v, (kind, n) in zip(flow.producer[value].ins, operands, strict=False):
                if v in flow.cheap and kind == "site" and own.isdisjoint(flow.leaves(v)):
                    handed.add(v)
                elif v in flow.cheap and kind == "local" and (v, n) not in known:
                    known.add((v, n))
                    compared.append((v, n))
        found = self.of(flow, first, members, frozenset(handed))
        return found if found.ops == self.ops and found.types == self.types else None


@dataclass
class Region:
    """The parts of one program that become calls of one function, by label. What stands around repetitions
    has a ``name``."""

    flow: Flow
    instances: dict[int, Instance]
    name: str = ""

    def shown(self) -> set[int]:
        """Places of the ops that somebody outside the instance reads, in some instance."""
        found: set[int] = set()
        for instance in self.instances.values():
            own = set(instance.members)
            found |= {instance.local[m] for m in own if not own.issuperset(self.flow.users.get(m, ()))}
        return found


@dataclass(frozen=True)
class Signature:
    """What a function is given and gives in the programs of one role.

    ``slots`` has its input for each site: sites that agree in every instance share one. ``places`` are those
    of the ops that somebody reads, ``seqs`` the rendezvous of the body in order. What has no ops hands back
    its first operand (:data:`BACK`).
    """

    slots: tuple[int, ...]
    places: tuple[int, ...]
    seqs: tuple[int, ...]

    @classmethod
    def of(cls, regions: Sequence[Region], seqs: Sequence[int]) -> Self:
        """``regions`` are the same part of the programs of one role."""
        instances = [i for region in regions for i in region.instances.values()]
        numbers: dict[tuple[str, ...], int] = {}
        width = len(instances[0].sites)
        slots = (numbers.setdefault(tuple(i.sites[s] for i in instances), len(numbers)) for s in range(width))
        shown = set().union(*(r.shown() for r in regions)) if instances[0].members else {BACK}
        return cls(tuple(slots), tuple(sorted(shown)), tuple(seqs))

    @property
    def width(self) -> int:
        """How many inputs the function has."""
        return 1 + max(self.slots, default=-1)
