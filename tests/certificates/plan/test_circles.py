"""Rendezvous that wait for one another have no run; the plan is refused and the circle shown."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.errors import FormatError
from certificates.plan.circles import check_circles
from certificates.plan.program import Program

MESH = {"r": 2}
TOGETHER = {"r": {"c0": 0, "c1": 0}}


def program(rank: int, *seqs: int) -> Program:
    """All-reduces one behind the other, each of the result before, in this order of rendezvous."""
    b = ProgramBuilder(MESH, box={"r": (rank, rank + 1)})
    value = b.input("x", "f32[2]")
    for _ in seqs:
        value = b.all_reduce(value, "r")
    b.output("y", value)
    built = b.build()
    numbers = iter(seqs)
    ops = tuple(
        op if op.name != "all_reduce" else type(op)(
            op.out, op.name, op.ins, op.type, {**op.attrs, "group": "r", "seq": next(numbers)}
        )
        for op in built.ops
    )  # fmt: skip
    return Program(built.inputs, ops, built.outputs)


def check(*orders: tuple[int, ...]) -> None:
    classes = {f"c{r}": program(r, *order) for r, order in enumerate(orders)}
    check_circles(classes, {}, TOGETHER, {})


def test_the_same_order_everywhere_has_a_run() -> None:
    check((0, 1, 2), (0, 1, 2))
    check((2, 0, 1), (2, 0, 1))


@pytest.mark.parametrize(
    ("second", "circle"),
    [((1, 0, 2), {"0", "1"}), ((0, 2, 1), {"1", "2"}), ((2, 1, 0), {"1", "2"})],
)
def test_another_order_is_a_circle(second: tuple[int, ...], circle: set[str]) -> None:
    with pytest.raises(FormatError, match="a value rests on itself: rendezvous") as error:
        check((0, 1, 2), second)
    shown = str(error.value).partition(": ")[2].replace("rendezvous ", "").split(" <- ")
    assert circle <= set(shown)


def test_a_long_chain_needs_no_deep_stack() -> None:
    check(tuple(range(2000)), tuple(range(2000)))


def test_ranks_of_different_groups_do_not_wait_for_one_another() -> None:
    """Two groups of one rank each: the same numbers there are different rendezvous."""
    classes = {f"c{r}": program(r, *o) for r, o in enumerate([(0, 1), (1, 0)])}
    check_circles(classes, {}, {"r": {"c0": 0, "c1": 1}}, {})
