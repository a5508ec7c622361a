"""Segments of a schedule, cut where a call takes a part of what one holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.errors import FormatError
from certificates.plan.calls import Call
from certificates.plan.program import Program
from orchestrator.outlining.parting import Parting
from orchestrator.outlining.slices import AFTER, BEFORE, EACH


def program() -> tuple[Program, Mapping[str, str]]:
    """Two layers: what is doubled is reduced, and squared then."""
    b = ProgramBuilder({"dp": 2}, box={})
    x, y = b.input("x", "f32[4]"), b.input("y", "f32[4]")
    names = {}
    for name, value in (("x", x), ("y", y)):
        ahead = value + value
        reduced = b.all_reduce(ahead, "dp", seq=len(names))
        names |= {f"ahead {name}": ahead.name, f"met {name}": reduced.name}
        names[f"behind {name}"] = (reduced * reduced).name
    return b.build(), names


def parted(phase: int) -> tuple[Parting, Mapping[str, str]]:
    made, names = program()
    number = {op.out: i for i, op in enumerate(made.ops)}
    found = [
        Call("f0", i, (name,), (names[f"met {name}"], names[f"behind {name}"])) for i, name in enumerate("xy")
    ]
    segments = {
        kind: tuple((n, n + 1) for n in sorted(number[names[f"{kind} {name}"]] for name in "xy"))
        for kind in ("ahead", "behind")
    }
    return Parting("c0", made.ops, made, found, segments, {op.out: phase for op in made.ops}), names


@pytest.mark.parametrize("phase", [BEFORE, AFTER])
def test_work_beside_the_collectives_of_two_calls_is_a_part_for_each(phase: int) -> None:
    parting, names = parted(phase)
    assert [len(parting.order[kind]) for kind in ("ahead", "behind")] == [2, 2]
    for kind, ahead in (("ahead", True), ("behind", False)):
        parts = [parting.at[names[f"{kind} {name}"]] for name in "xy"]
        assert len(set(parts)) == 2 and set(parts) == set(parting.order[kind])
        assert {parting.ahead[str(part)] for part in parts} == {ahead}


def test_what_every_run_does_is_not_cut() -> None:
    parting, _ = parted(EACH)
    assert parting.order == {"ahead": ["ahead"], "behind": ["behind"]} and not parting.ahead


def test_parts_take_no_name_of_another_segment() -> None:
    made, names = program()
    number = {op.out: i for i, op in enumerate(made.ops)}
    found = [Call("f0", i, (n,), (names[f"met {n}"], names[f"behind {n}"])) for i, n in enumerate("xy")]
    spans = [tuple((number[names[f"{kind} {n}"]],) * 2 for n in "xy") for kind in ("ahead", "behind")]
    both, other = (tuple((lo, lo + 1) for lo, _ in of) for of in spans)
    with pytest.raises(FormatError, match="c0 has segments of the names of others"):
        Parting("c0", made.ops, made, found, {"s": both, "s_1": other[:1]}, dict.fromkeys(number, AFTER))


def test_what_two_calls_compute_for_themselves_is_no_part_of_either() -> None:
    """A constant that both read stands where it stood, and neither waits for it."""
    b = ProgramBuilder({"dp": 2}, box={})
    x, y = b.input("x", "f32[4]"), b.input("y", "f32[4]")
    two = b.constant(2, "f32[4]")
    ahead = [x * two, y * two]
    met = [b.all_reduce(v, "dp", seq=i) for i, v in enumerate(ahead)]
    made = b.build()
    found = [Call("f0", i, (n,), (met[i].name,)) for i, n in enumerate("xy")]
    number = {op.out: i for i, op in enumerate(made.ops)}
    spans = tuple((n, n + 1) for n in sorted(number[v.name] for v in (two, *ahead)))
    parting = Parting("c0", made.ops, made, found, {"s": spans}, dict.fromkeys(number, AFTER))
    assert parting.at[two.name] == "s" and len(parting.order["s"]) == 3
    own = str(parting.at[ahead[0].name])
    assert parting.order["s"].index("s") < parting.order["s"].index(own)
    assert parting.anew(own) == {two.name}
