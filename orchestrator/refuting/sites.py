"""Places of a plan at which one edit could change all wrong outputs: single ops, and what one line makes.

A mistake in a loop over parameters is in many ops of one line, so the ops of a line that bear on a wrong
output are one place too; and if others of that line bear on right outputs as well, those that do not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from certificates.plan.plan import Plan
from certificates.plan.program import Attr, Loc, Op


@dataclass(frozen=True)
class Site:
    """Ops of one name, by class, in program order. ``together``: what one line gives to others, all names."""

    ops: tuple[tuple[str, Op], ...]
    together: bool = False

    @property
    def first(self) -> Op:
        return self.ops[0][1]


class Sites:
    """All sites on which the wrong outputs depend; ``reach``, by class and result, are masks of outputs."""

    def __init__(self, plan: Plan, wrong: Sequence[int]) -> None:
        self.plan = plan
        self.wrong = sum(1 << i for i in wrong)
        self.reach = {c.name: self._reach(c.name) for c in plan.classes}
        self.types = {c.name: c.program.types() for c in plan.classes}
        self.made = {c.name: {op.out: op for op in c.program.ops} for c in plan.classes}

    def _reach(self, cls: str) -> dict[str, int]:
        """The output relations that a value bears on."""
        program = self.plan.by_class[cls].program
        found: dict[str, int] = defaultdict(int)
        for number, relation in enumerate(self.plan.outputs):
            if relation.plan in program.outputs and any(p.cls == cls for p in relation.pieces):
                found[program.outputs[relation.plan]] |= 1 << number
        for op in reversed(program.ops):
            for v in op.ins:
                found[v] |= found[op.out]
        return found

    @cached_property
    def users(self) -> dict[str, dict[str, list[Op]]]:
        """Ops that read a value, by class."""
        found: dict[str, dict[str, list[Op]]] = {}
        for c in self.plan.classes:
            mine = found[c.name] = defaultdict(list)
            for op in c.program.ops:
                for v in dict.fromkeys(op.ins):
                    mine[v].append(op)
        return found

    def right_beside(self, ops: Sequence[tuple[str, Op]]) -> bool:
        """Does the line of some ops make others of their name that bear on right outputs only?"""
        return any(
            not self.reach[cls][other.out] & self.wrong and self.reach[cls][other.out]
            for cls, op in ops if op.loc is not None for other in self._beside[cls][op.loc, op.name]
        )  # fmt: skip

    @cached_property
    def _beside(self) -> dict[str, dict[tuple[Loc | None, str], list[Op]]]:
        """By class, the ops of one line and name."""
        found: dict[str, dict[tuple[Loc | None, str], list[Op]]] = {}
        for c in self.plan.classes:
            mine = found[c.name] = defaultdict(list)
            for op in c.program.ops:
                mine[op.loc, op.name].append(op)
        return found

    def literal(self, cls: str, value: str) -> Attr | None:
        """The number behind a value, through broadcasts."""
        return literal_of(self.made[cls], value)

    def own_literal(self, cls: str, op: Op) -> Op | None:
        """The literal that an op alone reads, where an earlier line of the function wrote it: a factor that
        only the backward pass meets."""
        found = [self.made[cls][v] for v in op.ins if v in self.made[cls]]
        mine = [o for o in found if o.name == "constant" and len(self.users[cls][o.out]) == 1]
        if len(mine) != 1 or mine[0].loc is None or op.loc is None:
            return None
        here, there = mine[0].loc, op.loc
        same = (here.source, here.function) == (there.source, there.function)
        return mine[0] if same and here.line < there.line else None

    def all(self) -> Iterator[Site]:
        """Every site once: those of several ops first."""
        seen: set[frozenset[tuple[str, str]]] = set()
        for site in (*self._lines(), *self._singles()):
            bears = 0
            for cls, op in site.ops:
                bears |= self.reach[cls][op.out]
            key = frozenset((cls, op.out) for cls, op in site.ops)
            if site.ops and bears & self.wrong == self.wrong and key not in seen:
                seen.add(key)
                yield site

    def _lines(self) -> Iterator[Site]:
        named: dict[tuple[Loc | None, str], list[tuple[str, Op]]] = defaultdict(list)
        given: dict[Loc, list[tuple[str, Op]]] = defaultdict(list)
        for c in self.plan.classes:
            for op in c.program.ops:
                if not self.reach[c.name][op.out] & self.wrong or op.loc is None:
                    continue
                named[op.loc, op.name].append((c.name, op))
                readers = self.users[c.name][op.out]
                if op.name != "constant" and (not readers or any(r.loc != op.loc for r in readers)):
                    given[op.loc].append((c.name, op))
        for ops, together in [*((v, False) for v in named.values()), *((v, True) for v in given.values())]:
            for some in (ops, [(c, op) for c, op in ops if not self.reach[c][op.out] & ~self.wrong]):
                yield Site(tuple(some), together and len({op.name for _, op in some}) > 1)
        for ops in named.values():
            yield from map(Site, self._read_alike(ops))

    def _read_alike(self, ops: Sequence[tuple[str, Op]]) -> Iterator[tuple[tuple[str, Op], ...]]:
        """The ops of a line that the same lines read, for each such set of lines."""
        found: dict[frozenset[tuple[Loc | None, str]], list[tuple[str, Op]]] = defaultdict(list)
        for cls, op in ops:
            found[frozenset((r.loc, r.name) for r in self.users[cls][op.out])].append((cls, op))
        yield from map(tuple, found.values())

    def _singles(self) -> Iterator[Site]:
        """An op in the classes that have it: the same line, name and number there."""
        found: dict[tuple[Loc | None, str, int], list[tuple[str, Op]]] = defaultdict(list)
        for c in self.plan.classes:
            counts: Counter[tuple[Loc | None, str]] = Counter()
            for op in c.program.ops:
                found[op.loc, op.name, counts[op.loc, op.name]].append((c.name, op))
                counts[op.loc, op.name] += 1
        for ops in found.values():
            yield Site(tuple(ops))


def literal_of(made: Mapping[str, Op], value: str) -> Attr | None:
    """The number behind a value of a program, through broadcasts."""
    op = made.get(value)
    while op is not None and op.name in ("broadcast_in_dim", "reshape"):
        op = made.get(op.ins[0])
    return None if op is None or op.name != "constant" else op.attrs["value"]
