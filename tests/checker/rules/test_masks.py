"""A row that constants mask completely, or never, is decided at true sizes; what inputs decide is assumed.

A claim that rests on "no row is completely masked" says nothing if the mask always covers a row.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Rejected
from checker.reading.plan import read_plan
from checker.rules import masks
from checker.rules.infinite import infinities

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program

DIRECTIONS: dict[str, Callable[[int, int], bool]] = {
    "GE": lambda a, b: a >= b,
    "GT": lambda a, b: a > b,
    "LE": lambda a, b: a <= b,
    "LT": lambda a, b: a < b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


def decided(ops: list[Any], keep: str, shape: tuple[int, ...], dims: tuple[int, ...] = (1,)) -> str:
    """`x` where `keep` is true, else -inf, reduced by a maximum: on the rank program of two ranks."""
    kind, rest = f"f32{[*shape]}".replace(" ", ""), [n for d, n in enumerate(shape) if d not in dims]
    last = [
        op("%90", "constant", [], kind, value="-inf"),
        op("%91", "select", [keep, "x", "%90"], kind),
        op("%92", "reduce", ["%91"], f"f32{rest}".replace(" ", ""), dims=[*dims], kind="max"),
    ]
    given = [["x", kind], ["p", kind.replace("f32", "i1")]]
    cls = {"name": "c0", "box": {"r": [0, 2]}, "program": program(given, [*ops, *last], [])}
    plan = read_plan(dump(plan_of([["r", 2]], program([], [], []), [cls], [], [], {})))
    try:
        notes = infinities(plan)
    except Rejected as error:
        assert "fails at class c0: constants mask a whole row that %92 (reduce max)" in str(error)
        return "always"
    assert notes in ([], ["class c0: no row that %92 (reduce max) reduces is completely masked"])
    return "assumed" if notes else "never"


def iotas(shape: tuple[int, ...], value: Any = None) -> list[Any]:
    """%0 and %1 number rows and columns; %2 is a number, of which the mesh axis may be part."""
    kind = f"i64{[*shape]}".replace(" ", "")
    return [
        op("%0", "iota", [], kind, dim=0),
        op("%1", "iota", [], kind, dim=1),
        op("%2", "constant", [], kind, value=value if value is not None else "0"),
    ]


def boolean(k: int, name: str, xs: list[str], shape: tuple[int, ...], **attrs: Any) -> Any:
    return op(f"%{k}", name, xs, f"i1{[*shape]}".replace(" ", ""), **attrs)


@pytest.mark.parametrize("size", [1, 4, 8192])
def test_causal_masks(size: int) -> None:
    """At true sizes: with the diagonal each row keeps an entry, without it the first (or last) has none."""
    wants = {"GE": "never", "LE": "never", "GT": "always", "LT": "always"}
    wants["EQ"] = "never" if size < 100 else "assumed"  # row by row, which takes too long
    for direction, want in wants.items():
        compare = boolean(3, "compare", ["%0", "%1"], (size, size), direction=direction)
        assert decided([*iotas((size, size)), compare], "%3", (size, size)) == want


@pytest.mark.parametrize("column", [0, 5461, 8190])
def test_the_only_finite_entry_of_a_long_row_is_found(column: int) -> None:
    """Nothing is left to cut but the row itself, however many parts of it must be looked at."""
    shape = (1, 8192)
    compare = boolean(3, "compare", ["%1", "%2"], shape, direction="EQ")
    assert decided([*iotas(shape, str(column)), compare], "%3", shape) == "never"


@pytest.mark.parametrize("row", range(8))
def test_one_masked_row_is_found_wherever_it_stands(row: int) -> None:
    compare = boolean(3, "compare", ["%0", "%2"], (8, 4), direction="NE")
    assert decided([*iotas((8, 4), str(row)), compare], "%3", (8, 4)) == "always"


def test_what_an_input_decides_is_assumed() -> None:
    shape = (8, 8)
    causal = [*iotas(shape), boolean(3, "compare", ["%0", "%1"], shape, direction="GE")]
    strict = [*iotas(shape), boolean(3, "compare", ["%0", "%1"], shape, direction="GT")]
    assert decided([], "p", shape) == "assumed"
    assert decided([*causal, boolean(4, "and", ["%3", "p"], shape)], "%4", shape) == "assumed"
    assert decided([*causal, boolean(4, "or", ["p", "%3"], shape)], "%4", shape) == "never"
    assert decided([*strict, boolean(4, "and", ["p", "%3"], shape)], "%4", shape) == "always"
    assert decided([*strict, boolean(4, "or", ["%3", "p"], shape)], "%4", shape) == "assumed"


def test_a_rank_is_a_row_too() -> None:
    """Rank r holds rows 4 r to 4 r + 3 of 8; with an offset too large, rank 1 alone has a masked row."""
    for step, direction, want in ((4, "GE", "never"), (4, "LE", "never"), (5, "LE", "always")):
        ops = [
            *iotas((4, 8), {"r": step}),
            op("%3", "add", ["%0", "%2"], "i64[4,8]"),
            boolean(4, "compare", ["%3", "%1"], (4, 8), direction=direction),
        ]
        assert decided(ops, "%4", (4, 8)) == want


def test_an_answer_that_takes_long_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [*iotas((64, 64)), boolean(3, "compare", ["%0", "%1"], (64, 64), direction="EQ")]
    assert decided(ops, "%3", (64, 64)) == "never"
    monkeypatch.setattr(masks, "MAX_WORK", 40)
    assert decided(ops, "%3", (64, 64)) == "assumed"


def test_random_masks_are_decided_as_every_element_says() -> None:
    """Compared with the mask written out; each op of the checker's table stands beside its meaning here."""
    draw, seen = random.Random(5), set()
    for _ in range(300):
        rows, columns = draw.randint(1, 6), draw.randint(1, 6)
        shape, c = (rows, columns), draw.randint(-3, 6)
        ops = iotas(shape, str(c))
        numbers: list[tuple[str, Callable[[int, int], int]]] = [
            ("%0", lambda i, j: i),
            ("%1", lambda i, j: j),
            ("%2", lambda i, j, c=c: c),
        ]
        k, kind = 3, f"i64[{rows},{columns}]"
        for name, sign in (("add", 1), ("subtract", -1)):
            (x, f), (y, g) = draw.choice(numbers), draw.choice(numbers)
            ops.append(op(f"%{k}", name, [x, y], kind))
            numbers.append((f"%{k}", lambda i, j, f=f, g=g, s=sign: f(i, j) + s * g(i, j)))
            k += 1
        (x, f), n = draw.choice(numbers), draw.randint(1, columns)
        if columns % 2 == 0:  # regrouped: %k[i, j] = x[row-major number of (i, j) in the transposed shape]
            ops.append(op(f"%{k}", "reshape", [x], f"i64[{columns},{rows}]"))
            ops.append(op(f"%{k + 1}", "transpose", [f"%{k}"], kind, perm=[1, 0]))
            numbers.append((f"%{k + 1}", lambda i, j, f=f, r=rows, m=columns: f(*divmod(j * r + i, m))))
            k += 2
        else:  # the columns from n on, then those before
            parts = []
            for start, size in ((n, columns - n), (0, n)):
                if size:
                    part = f"i64[{rows},{size}]"
                    ops.append(op(f"%{k}", "slice", [x], part, start=[0, start], stride=[1, 1]))
                    parts.append(f"%{k}")
                    k += 1
            ops.append(op(f"%{k}", "concatenate", parts, kind, dim=1))
            numbers.append((f"%{k}", lambda i, j, f=f, n=n, m=columns: f(i, (j + n) % m)))
            k += 1
        bools: list[tuple[str, Callable[[int, int], bool]]] = []
        for _ in range(2):
            (x, f), (y, g), d = draw.choice(numbers), draw.choice(numbers), draw.choice([*DIRECTIONS])
            ops.append(boolean(k, "compare", [x, y], shape, direction=d))
            bools.append((f"%{k}", lambda i, j, f=f, g=g, d=d: DIRECTIONS[d](f(i, j), g(i, j))))
            k += 1
        (x, p), (y, q) = bools
        both = draw.random() < 0.5
        ops += [boolean(k, "and" if both else "or", [x, y], shape), boolean(k + 1, "not", [f"%{k}"], shape)]
        turned = draw.random() < 0.3
        kept = [
            [((p(i, j) and q(i, j)) if both else (p(i, j) or q(i, j))) != turned for j in range(columns)]
            for i in range(rows)
        ]
        want = "never" if all(map(any, kept)) else "always"
        assert decided(ops, f"%{k + turned}", shape) == want, (ops, kept)
        seen.add(want)
    assert seen == {"never", "always"}


def test_all_rows_of_all_dimensions() -> None:
    """A batch in front, and two dimensions reduced at once."""
    mask = [*iotas((4, 4)), boolean(3, "compare", ["%0", "%1"], (4, 4), direction="GT")]
    wide = [*mask, boolean(4, "broadcast_in_dim", ["%3"], (2, 4, 4), dims=[1, 2])]
    assert decided(wide, "%4", (2, 4, 4), (2,)) == "always"
    assert decided(wide, "%4", (2, 4, 4), (1, 2)) == "never"
    assert decided(wide, "%4", (2, 4, 4), (0, 1)) == "always", "the last column"


def with_function(direction: str) -> list[str]:
    """The mask is made once and given to a function, which reduces."""
    body = program(
        [["x", "f32[4,4]"], ["m", "i1[4,4]"]],
        [
            op("%0", "constant", [], "f32[4,4]", value="-inf"),
            op("%1", "select", ["m", "x", "%0"], "f32[4,4]"),
            op("%2", "reduce", ["%1"], "f32[4]", dims=[1], kind="max"),
        ],
        [["y", "%2"]],
    )
    own = [*iotas((4, 4)), boolean(3, "compare", ["%0", "%1"], (4, 4), direction=direction)]
    whole = program([["x", "f32[4,4]"]], [*own, [["%4"], "call", ["x", "%3"], "f0", 0]], [])
    cls = {"name": "c0", "box": {"r": [0, 1]}, "program": whole}
    plan = plan_of([["r", 1]], whole, [cls], [], [], {})
    return infinities(
        read_plan(dump(plan | {"functions": {"f0": {"specification": body, "classes": {"c0": body}}}}))
    )


def test_a_mask_that_is_given_to_a_function() -> None:
    assert with_function("GE") == []
    with pytest.raises(Rejected, match=r"at function f0, specification: constants mask a whole row that %2"):
        with_function("GT")


@pytest.mark.parametrize(
    ("yes", "no", "on"), [(True, False, set()), (False, True, set()), (False, False, {"i"})]
)
def test_only_what_is_open_asks_for_a_cut(yes: bool, no: bool, on: set[str]) -> None:
    """Cuts that tell nothing use up the work, and a mask that was decidable is printed as assumed."""
    assert masks.truth(yes, no, frozenset(["i"])).on == on


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [(1, 3, (1, 1)), (-3, -1, (1, 1)), (0, 0, (0, 0)), (-2, 3, (0, 1)), (0, 3, (0, 1))],
)
def test_a_number_is_true_unless_it_is_zero(low: int, high: int, want: tuple[int, int]) -> None:
    """A mask made of counts: above zero, below zero, or not known, as where zero lies between."""
    plan = read_plan(
        dump(
            plan_of(
                [],
                program([["n", "i64[4]"]], [op("%0", "convert", ["n"], "i1[4]")], []),
                [{"name": "c0", "box": {}, "program": program([], [], [])}],
                [],
                [],
            )
        )
    )
    found = masks.cell(plan.spec.ops[0], [masks.Seen(False, low, high, frozenset({0}))])
    assert found is not None and (found.low, found.high) == want
    assert found.on == (frozenset() if want[0] == want[1] else {0})


@pytest.mark.parametrize("x", [True, False, None])
@pytest.mark.parametrize("y", [True, False, None])
def test_a_sum_is_finite_if_both_are_known_to_be(x: bool | None, y: bool | None) -> None:
    """Taken for finite while one may be infinite, a row masked completely would need no assumption."""
    want = True if x or y else None if x is None or y is None else False
    assert masks.either(masks.Seen(x, 0, 0), masks.Seen(y, 0, 0)) is want


def test_a_reshape_reads_what_holds_its_first_and_last_element() -> None:
    """One row too far, and the mask of another row decides."""
    both = frozenset({0, 1})
    assert masks.regrouped((2, 3), (6,), {0: (0, 1), 1: (0, 3)}) == {0: ((0, 3), both)}
    assert masks.regrouped((2, 3), (6,), {0: (1, 2), 1: (1, 2)}) == {0: ((4, 5), both)}
    assert masks.regrouped((6,), (2, 3), {0: (3, 5)}) == {0: ((1, 2), {0}), 1: ((0, 2), {0})}
    assert masks.regrouped((6,), (2, 3), {0: (2, 4)}) == {0: ((0, 2), {0}), 1: ((0, 3), {0})}
