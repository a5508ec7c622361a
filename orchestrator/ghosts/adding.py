"""A plan with ghosts: what each program, and each body of a function, has besides its own ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program

from ..relating.signs import Signs
from .following import Followed, Follower

SPECIFICATION = "s"


@dataclass(frozen=True)
class Ghosts:
    """The ``plan`` with its ghosts; by function, which is empty for the main programs, and by program what was
    ``followed``."""

    plan: Plan
    followed: Mapping[str, Mapping[str, Followed]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(f.ghosts for of in self.followed.values() for f in of.values())

    def ops(self) -> dict[str, dict[str, list[Op]]]:
        """The ghosts, by function and program."""
        out: dict[str, dict[str, list[Op]]] = {}
        for function, of in self.followed.items():
            found = {o: [op for op in f.program.ops if op.out in f.ghosts] for o, f in of.items() if f.ghosts}
            if found:
                out[function] = found
        return out


def with_ghosts(plan: Plan) -> Ghosts:
    """Follow all programs of a plan and of its functions."""
    signs = Signs(plan)
    found: dict[str, dict[str, Followed]] = {}
    for (function, owner), program in _programs(plan):
        follower = Follower(
            program,
            partial(_said, signs.positive, function, owner),
            partial(_said, signs.nonnegative, function, owner),
        )
        found.setdefault(function, {})[owner] = follower.follow()
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
    return Ghosts(replace(plan, specification=main, classes=classes, functions=functions), found)


def _programs(plan: Plan) -> Iterator[tuple[tuple[str, str], Program]]:
    yield ("", SPECIFICATION), plan.specification
    yield from ((("", c.name), c.program) for c in plan.classes)
    for name, f in plan.functions.items():
        yield (name, SPECIFICATION), f.specification
        yield from (((name, role), program) for role, program in f.classes.items())


def _said(said: object, function: str, owner: str, name: str) -> bool:
    assert callable(said)
    return bool(said(function, f"{owner}:{name}"))
