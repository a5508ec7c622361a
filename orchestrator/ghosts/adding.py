"""A plan with ghosts: what each program, and each body of a function, has besides its own ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.proof.ghosts import Ghosts

from ..relating.signs import Signs
from .following import Followed, Follower

SPECIFICATION = "s"


@dataclass(frozen=True)
class Added:
    """The ``plan`` with its ghosts, and what was ``followed``, by function, which is empty for the main
    programs, and program."""

    plan: Plan
    followed: Mapping[str, Mapping[str, Followed]] = field(default_factory=dict)

    def behind(self, named: Mapping[str, Collection[str]]) -> Ghosts:
        """The ghosts that tensors rest on which a proof names, ``program:value``, function by function."""
        out: dict[str, dict[str, list[Op]]] = {}
        for function, tensors in named.items():
            for owner, followed in self.followed[function].items():
                needed = {t.partition(":")[2] for t in tensors if t.partition(":")[0] == owner}
                found: list[Op] = []
                for op in reversed(followed.program.ops):
                    if op.out in followed.ghosts and op.out in needed:
                        needed.update(op.ins)
                        found.append(op)
                if found:
                    out.setdefault(function, {})[owner] = found[::-1]
        return out


def with_ghosts(plan: Plan) -> Added | None:
    """A plan with the ghosts of all its programs and functions; ``None`` if no program merges blocks."""
    signs = Signs(plan)
    found: dict[str, dict[str, Followed]] = {}
    for (function, owner), program in _programs(plan):
        follower = Follower(
            program,
            partial(_said, signs.positive, function, owner),
            partial(_said, signs.nonnegative, function, owner),
        )
        found.setdefault(function, {})[owner] = follower.follow()
    if not any(f.merges for of in found.values() for f in of.values()):
        return None
    functions = {
        name: replace(
            f,
            specification=found[name][SPECIFICATION].program,
            classes={role: found[name][role].program for role in f.classes},
        )
        for name, f in plan.functions.items()
    }
    classes = tuple(replace(c, program=found[""][c.name].program) for c in plan.classes)
    main = found[""][SPECIFICATION].program
    return Added(
        replace(plan, specification=main, classes=classes, functions=functions, schedule=None), found
    )


def _programs(plan: Plan) -> Iterator[tuple[tuple[str, str], Program]]:
    yield ("", SPECIFICATION), plan.specification
    yield from ((("", c.name), c.program) for c in plan.classes)
    for name, f in plan.functions.items():
        yield (name, SPECIFICATION), f.specification
        yield from (((name, role), program) for role, program in f.classes.items())


def _said(said: Callable[[str, str], bool], function: str, owner: str, name: str) -> bool:
    return said(function, f"{owner}:{name}")
