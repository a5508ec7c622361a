"""Calls of functions inside programs (``docs/format.md``, section *Functions*)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import FormatError
from .ops import CALL
from .program import Op, Program

Site = tuple[str, int]


@dataclass(frozen=True)
class Call:
    """One call in one program: ``results`` hold the function's outputs in order."""

    function: str
    instance: int
    ins: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def site(self) -> Site:
        return self.function, self.instance


def calls(program: Program) -> Iterator[Call]:
    """The calls of a program, in order."""
    made = [op for op in program.ops if op.name == CALL]
    for i, op in enumerate(made):
        if not op.integer("output"):
            results = [op.out]
            while i + len(results) < len(made) and made[i + len(results)].integer("output"):
                results.append(made[i + len(results)].out)
            yield Call(op.text("function"), op.integer("instance"), op.ins, tuple(results))


def call_from_json(entry: Sequence[object], bodies: Mapping[str, Program]) -> list[Op]:
    """The results of one call entry, each an op named ``call``; types are the body's outputs'."""
    results, _, ins, function, instance = entry
    if not isinstance(function, str) or function not in bodies:
        raise FormatError(f"call of an unknown function {str(function)[:60]!r}")
    for names in (results, ins):
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise FormatError(f"results and operands of a call of {function} must be lists of names")
    if isinstance(instance, bool) or not isinstance(instance, int) or instance < 0:
        raise FormatError(f"instance of a call of {function} must be a non-negative integer")
    assert isinstance(results, list) and isinstance(ins, list)
    body = bodies[function]
    if len(results) != len(body.outputs) or not results:
        raise FormatError(f"a call of {function} has {len(results)} results, its body {len(body.outputs)}")
    operands = tuple(ins)
    return [
        Op(
            out,
            CALL,
            operands,
            body.type_of(value),
            {"function": function, "instance": instance, "output": i},
        )
        for i, (out, value) in enumerate(zip(results, body.outputs.values(), strict=True))
    ]


def call_to_json(call: Call) -> list[object]:
    return [list(call.results), CALL, list(call.ins), call.function, call.instance]


def check_calls(
    programs: Mapping[str, Program],
    bodies: Mapping[str, Mapping[str, Program]],
    sliced: Collection[str] = (),
) -> None:
    """Operand types, and that every program calls every instance exactly once.

    ``bodies`` gives the body of each function for each program that may call it. Those that are ``sliced``
    are called by some programs only (:mod:`.slices`).
    """
    expected: dict[Site, str] | None = None
    for owner, program in programs.items():
        found: dict[Site, str] = {}
        seen: set[Site] = set()
        for call in calls(program):
            if call.site in seen:
                raise FormatError(f"{owner} calls {call.function} {call.instance} twice")
            seen.add(call.site)
            if call.function not in sliced:
                found[call.site] = owner
            if owner not in bodies[call.function]:
                raise FormatError(f"{owner} has no role of {call.function}")
            wanted = list(bodies[call.function][owner].inputs.values())
            if wanted != [program.type_of(v) for v in call.ins]:
                raise FormatError(f"{owner}: operands of {call.function} {call.instance} have other types")
        expected = found if expected is None else expected
        if found.keys() != expected.keys():
            function, instance = min(found.keys() ^ expected.keys())
            raise FormatError(f"only some programs call {function} {instance}")
