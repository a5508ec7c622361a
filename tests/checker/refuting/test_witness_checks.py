"""Witnesses: grids against dense arrays, op by op, rank by rank, and every refusal of witness.py."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed, Rejected, Undecided
from checker.language.affine import Affine
from checker.language.plan import Plan
from checker.language.proof import Fact, Reduced, Tensor
from checker.reading.plan import read_plan
from checker.refuting import witness
from checker.refuting.intervals import HIGH, LOW, NOWHERE, Reals
from checker.refuting.witness import (
    OPEN,
    Grid,
    Machine,
    capped,
    cellwise,
    coarse,
    constant,
    element,
    gathered,
    joined,
    overlay,
    pull,
    push,
    refine,
    replay,
    reshaped,
    sliced,
    union,
    value,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, piece, plan_of, program, relation, z

Dense = dict[tuple[int, ...], Any]


def indices(shape: Any) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape)))


def shape_of(grid: Grid) -> tuple[int, ...]:
    return tuple(c[-1] for c in grid.cuts)


def dense(grid: Grid) -> Dense:
    """All elements; the cuts must start at 0 and increase, with one value per cell."""
    for line in grid.cuts:
        assert line[0] == 0 and all(a < b for a, b in itertools.pairwise(line)), grid.cuts
    cells = 1
    for line in grid.cuts:
        cells *= len(line) - 1
    assert len(grid.data) == cells
    return {i: element(grid, i) for i in indices(shape_of(grid))}


def some_grid(rng: random.Random, shape: tuple[int, ...], values: int = 9) -> Grid:
    cuts = tuple(tuple(sorted({0, n, *(rng.randrange(n + 1) for _ in range(2))})) for n in shape)
    cells = 1
    for line in cuts:
        cells *= len(line) - 1
    return Grid(cuts, [rng.randrange(values) for _ in range(cells)])


SHAPES = [(), (1,), (5,), (3, 4), (2, 1, 6), (4, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_grids(shape: tuple[int, ...]) -> None:
    """Refined, joined, coarsened: the elements stay; coarse has no two equal neighbours to join."""
    rng = random.Random(1)
    for values in (1, 2, 9) * 8:
        a, b = some_grid(rng, shape, values), some_grid(rng, shape, values)
        together = union([a.cuts, b.cuts])
        assert dense(Grid(together, refine(a, together))) == dense(a)
        assert dense(cellwise(lambda x, y: (x, y), a, b)) == {
            i: (v, dense(b)[i]) for i, v in dense(a).items()
        }
        small = coarse(a)
        assert dense(small) == dense(a)
        for d, line in enumerate(small.cuts):
            for cut in line[1:-1]:
                pairs = [(i, (*i[:d], cut - 1, *i[d + 1 :])) for i in indices(shape) if i[d] == cut]
                assert any(dense(a)[i] != dense(a)[j] for i, j in pairs), "this cut is needed"
        assert dense(constant(shape, 7)) == dict.fromkeys(indices(shape), 7)


def test_overlays() -> None:
    rng = random.Random(2)
    for _ in range(30):
        grids = [
            Grid(g.cuts, [OPEN if v < 5 else v for v in g.data])
            for g in (some_grid(rng, (4, 3)) for _ in range(3))
        ]
        want = {
            i: next((v for v in (dense(g)[i] for g in grids) if v is not OPEN), OPEN) for i in indices((4, 3))
        }
        assert dense(overlay(grids)) == want


def form(const: int, **terms: int) -> Affine:
    return Affine(const, tuple(sorted((s, c) for s, c in terms.items() if c)))


@pytest.mark.parametrize(
    "shape,forms,sizes",
    [
        ((6,), [form(0, a=1)], {"a": 6}),
        ((6,), [form(2, a=1)], {"a": 3}),
        ((9,), [form(1, a=3)], {"a": 3}),
        ((6,), [form(0, a=2, b=1)], {"a": 3, "b": 2}),
        ((12,), [form(0, a=4, b=1)], {"a": 3, "b": 2}),
        ((24,), [form(0, a=12, b=4, c=1)], {"a": 2, "b": 3, "c": 4}),
        ((5,), [form(3)], {"a": 2}),
        ((), [], {"a": 3}),
        ((4, 6), [form(0, b=1), form(0, a=1)], {"a": 6, "b": 4}),
        ((4, 4), [form(0, a=1), form(0, a=1)], {"a": 4}),
        ((4, 6), [form(1, a=1), form(0, a=3, b=1)], {"a": 2, "b": 3}),
        ((6,), [form(1, a=2, b=5)], {"a": 2, "b": 1}),
        ((30,), [form(2, a=10, b=3, c=1)], {"a": 2, "b": 3, "c": 2}),
        ((8,), [form(0, b=1, a=2)], {"a": 4, "b": 2}),
        ((40,), [form(1, a=13, b=4, c=1)], {"a": 3, "b": 2, "c": 4}),
    ],
)
def test_pulls(shape: Any, forms: list[Affine], sizes: dict[str, int]) -> None:
    rng = random.Random(3)
    for _ in range(25):
        grid = some_grid(rng, shape, 20)
        found = dense(pull(grid, forms, sizes))
        assert found == {
            i: dense(grid)[tuple(value(f, dict(zip(sizes, i, strict=True))) for f in forms)]
            for i in indices(sizes.values())
        }


@pytest.mark.parametrize(
    "forms,sizes",
    [
        ([form(0, a=1, b=1)], {"a": 3, "b": 2}),
        ([form(0, a=2, b=2)], {"a": 2, "b": 2}),
        ([form(5, a=-1)], {"a": 6}),
        ([form(0, a=2, b=1)], {"a": 2, "b": 3}),
    ],
)
def test_what_cannot_be_pulled(forms: list[Affine], sizes: dict[str, int]) -> None:
    with pytest.raises(Rejected, match=r"^obligation 18 .*the layout of an input is outside the reach"):
        pull(Grid(((0, 3, 6),), [1, 2]), forms, sizes)


@pytest.mark.parametrize(
    "sizes,forms,starts,shape",
    [
        ((4,), [[(1, 0)]], [0], (4,)),
        ((4,), [[(1, 0)]], [2], (7,)),
        ((3,), [[(2, 0)]], [1], (8,)),
        ((2, 3), [[(3, 0), (1, 1)]], [0], (6,)),
        ((2, 3), [[(4, 0), (1, 1)]], [1], (9,)),
        ((2, 3), [[(1, 1)], [(1, 0)]], [0, 1], (3, 4)),
        ((2, 3), [[(1, 0)], [(2, 1)]], [1, 0], (4, 6)),
        ((2, 3, 2), [[(6, 0), (2, 1), (1, 2)]], [0], (12,)),
        ((2, 3, 2), [[(9, 0), (3, 1), (1, 2)]], [2], (25,)),
        ((2, 3), [[(1, 0)], [], [(1, 1)]], [0, 2, 0], (2, 4, 3)),
        ((), [[]], [1], (3,)),
        ((), [], [], ()),
    ],
)
def test_pushes(sizes: Any, forms: Any, starts: list[int], shape: tuple[int, ...]) -> None:
    rng = random.Random(4)
    for _ in range(25):
        grid = some_grid(rng, sizes, 20)
        want: Dense = dict.fromkeys(indices(shape), OPEN)
        for i, v in dense(grid).items():
            want[tuple(s + sum(c * i[d] for c, d in f) for f, s in zip(forms, starts, strict=True))] = v
        assert dense(push(grid, forms, starts, shape)) == want


@pytest.mark.parametrize(
    "source,shape",
    [
        ((6,), (2, 3)),
        ((2, 3), (6,)),
        ((4, 6), (2, 2, 6)),
        ((4, 6), (3, 8)),
        ((2, 3, 4), (4, 6)),
        ((1, 6), (6, 1)),
        ((), (1, 1)),
        ((1,), ()),
        ((5, 4), (5, 2, 2)),
        ((2, 1, 3), (3, 2)),
    ],
)
def test_reshapes(source: tuple[int, ...], shape: tuple[int, ...]) -> None:
    rng = random.Random(5)
    for _ in range(25):
        grid = some_grid(rng, source, 20)
        flat = [dense(grid)[i] for i in indices(source)]
        assert dense(reshaped(grid, source, shape)) == dict(zip(indices(shape), flat, strict=True))


def test_slices_and_concatenations() -> None:
    rng = random.Random(6)
    for _ in range(40):
        grid = some_grid(rng, (7, 5), 20)
        starts, strides = (rng.randrange(3), rng.randrange(2)), (rng.choice((1, 2)), rng.choice((1, 3)))
        shape = tuple((n - 1 - s) // t + 1 for n, s, t in zip((7, 5), starts, strides, strict=True))
        assert dense(sliced(grid, starts, strides, shape)) == {
            i: dense(grid)[tuple(s + t * k for s, t, k in zip(starts, strides, i, strict=True))]
            for i in indices(shape)
        }
        for dim in range(3):
            sizes = [[3, 2, 4] for _ in range(3)]
            for k, own in enumerate(sizes):
                own[dim] = k + 1
            parts = [some_grid(rng, tuple(own), 20) for own in sizes]
            whole, found, offset = [3, 2, 4], {}, 0
            whole[dim] = 6
            for part in parts:
                found |= {(*i[:dim], i[dim] + offset, *i[dim + 1 :]): v for i, v in dense(part).items()}
                offset += shape_of(part)[dim]
            assert dense(joined(parts, dim)) == found and set(found) == set(indices(whole))


@pytest.mark.parametrize(
    "shape,index,axis,batch",
    [
        ((5,), (3,), 0, 0),
        ((4, 5), (3,), 1, 0),
        ((4, 5), (3,), 0, 0),
        ((4, 5), (2, 2), 0, 0),
        ((4, 5), (4, 3), 1, 1),
        ((2, 4, 5), (2, 3), 1, 1),
        ((2, 4, 5), (2, 3), 2, 1),
        ((2, 3, 5), (2, 3, 2), 2, 2),
        ((5, 2), (), 0, 0),
    ],
)
def test_gathers(shape: tuple[int, ...], index: tuple[int, ...], axis: int, batch: int) -> None:
    """An index out of range gives what is lost, one that is not known gives nothing known."""
    rng = random.Random(7)
    for _ in range(30):
        x, i = some_grid(rng, shape, 20), some_grid(rng, index, 8)
        i = Grid(i.cuts, [None if v == 7 else v - 1 for v in i.data])
        out = (*shape[:axis], *index[batch:], *shape[axis + 1 :])
        want = {}
        for o in indices(out):
            k = axis + len(index) - batch
            at = dense(i)[(*o[:batch], *o[axis:k])]
            inside = at is not None and 0 <= at < shape[axis]
            want[o] = dense(x)[(*o[:axis], at, *o[k:])] if inside else None if at is None else "lost"
        assert dense(gathered((x, i), axis, batch, "lost")) == want


def test_cells_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    big = Grid(((0, 1, 2, 3, 4),), [1, 2, 3, 4])
    other = Grid(((0, 2, 4),), [0, 1])
    two = Grid(((0, 1, 2), (0, 1, 2)), [1, 2, 3, 4])
    z4 = {"a": 4}
    makes: list[tuple[Callable[[], Any], int]] = [
        (lambda: capped(5), 5),
        (lambda: union([big.cuts, other.cuts]), 4),
        (lambda: pull(big, [form(0, a=1)], z4), 4),
        (lambda: push(big, [[(1, 0)]], [0], (4,)), 4),
        (lambda: push(big, [[(2, 0)]], [0], (8,)), 8),
        (lambda: joined([big, big], 0), 8),
        (lambda: push(two, [[(3, 0), (1, 1)]], [0], (6,)), 6),
        (lambda: gathered((big, Grid(((0, 1, 2),), [0, 1])), 0, 0, None), 2),
        (lambda: gathered((two, Grid(((0, 1, 2),), [0, 1])), 0, 0, None), 4),
    ]
    for make, cells in makes:
        monkeypatch.setattr(witness, "MAX_CELLS", cells)
        make()
        monkeypatch.setattr(witness, "MAX_CELLS", cells - 1)
        with pytest.raises(Undecided, match="witness: a value has too many cells"):
            make()


# Machines ---------------------------------------------------------------------------------------------------


def plan(spec: Any, own: Any = None, mesh: Any = (("r", 1),), classes: Any = None, **more: Any) -> Plan:
    boxes = classes or [{a: [0, n] for a, n in mesh}]
    return read_plan(
        dump(
            plan_of(
                [list(m) for m in mesh],
                spec,
                [
                    {"name": f"c{i}", "box": box, "program": own or program([], [], [])}
                    for i, box in enumerate(boxes)
                ],
                more.get("inputs", []),
                more.get("outputs", []),
                more.get("groups"),
                more.get("ranges"),
            )
        )
    )


def block(shape: tuple[int, ...], *values: Any) -> dict[str, Any]:
    """One block per position of the first dimension, or a single block."""
    cuts = [list(range(n + 1)) if d == 0 and len(values) > 1 else [0, n] for d, n in enumerate(shape)]
    return {"cuts": cuts, "values": [str(v).lower() if isinstance(v, bool) else str(v) for v in values]}


R = Reals(64)


def evaluate(ops: list[Any], inputs: Any, given: Any, **more: Any) -> list[Any]:
    """The elements of the last op's result in the specification."""
    spec = program(inputs, ops, [])
    machine = Machine(plan(spec, **more), given, Fraction(3), R)
    grid = machine.grids[machine.number(-1, ops[-1][0])]
    return [element(grid, i) for i in indices(shape_of(grid))]


def number(v: Any) -> Any:
    return v if v in (LOW, HIGH, NOWHERE, None) or isinstance(v, bool) else R.of(Fraction(v))


def test_elementwise_integers_and_booleans() -> None:
    """Exact, and not known where an operand is not."""
    inputs = [["n", "i64[4]"], ["m", "i64[4]"], ["p", "i1[4]"], ["q", "i1[4]"]]
    given = {
        "n": block((4,), 3, -2, 0, 5),
        "m": block((4,), 3, 1, -4, 7),
        "p": block((4,), True, True, False, False),
        "q": block((4,), True, False, True, False),
    }
    want: dict[str, tuple[str, list[Any]]] = {
        "add": ("nm", [6, -1, -4, 12]),
        "subtract": ("nm", [0, -3, 4, -2]),
        "multiply": ("nm", [9, -2, 0, 35]),
        "maximum": ("nm", [3, 1, 0, 7]),
        "minimum": ("nm", [3, -2, -4, 5]),
        "negate": ("n", [-3, 2, 0, -5]),
        "abs": ("n", [3, 2, 0, 5]),
        "and": ("pq", [True, False, False, False]),
        "or": ("pq", [True, True, True, False]),
        "not": ("p", [False, False, True, True]),
    }
    for name, (operands, result) in want.items():
        kind = "i1[4]" if name in ("and", "or", "not") else "i64[4]"
        assert evaluate([op("%0", name, list(operands), kind)], inputs, given) == result, name
    for direction, result in (
        ("EQ", [1, 0, 0, 0]),
        ("NE", [0, 1, 1, 1]),
        ("LT", [0, 1, 0, 1]),
        ("LE", [1, 1, 0, 1]),
        ("GT", [0, 0, 1, 0]),
        ("GE", [1, 0, 1, 0]),
    ):
        compare = op("%0", "compare", ["n", "m"], "i1[4]", direction=direction)
        assert evaluate([compare], inputs, given) == list(map(bool, result)), direction
    for source, kind, result in (
        ("n", "f32[4]", [R.of(v) for v in (3, -2, 0, 5)]),
        ("n", "i1[4]", [1, 1, 0, 1]),
        ("p", "i64[4]", [1, 1, 0, 0]),
        ("p", "f32[4]", [R.one, R.one, R.zero, R.zero]),
        ("n", "i32[4]", [3, -2, 0, 5]),
        ("p", "i1[4]", [1, 1, 0, 0]),
    ):
        assert evaluate([op("%0", "convert", [source], kind)], inputs, given) == result
    chosen = op("%0", "select", ["p", "n", "m"], "i64[4]")
    assert evaluate([chosen], inputs, given) == [3, -2, -4, 7]


def test_comparisons_of_reals() -> None:
    inputs, given = [["x", "f32[3]"], ["y", "f32[3]"]], {"x": block((3,), 1, 2, 3), "y": block((3,), 2, 2, 2)}
    for direction, result in (
        ("EQ", [0, 1, 0]),
        ("NE", [1, 0, 1]),
        ("LT", [1, 0, 0]),
        ("LE", [1, 1, 0]),
        ("GT", [0, 0, 1]),
        ("GE", [0, 1, 1]),
    ):
        compare = op("%0", "compare", ["x", "y"], "i1[3]", direction=direction)
        assert evaluate([compare], inputs, given) == list(map(bool, result)), direction
    third = [
        op("%0", "constant", [], "f32[]", value="1/3"),
        op("%1", "compare", ["%0", "%0"], "i1[]", direction="LE"),
        op("%2", "convert", ["%1"], "i64[]"),
    ]
    assert evaluate(third, [], {}) == [None], "an enclosure of 1/3 is no point"
    chosen = [*third[:2], op("%3", "select", ["%1", "%0", "%0"], "f32[]")]
    assert evaluate(chosen, [], {}) == [None], "not known which"


def test_literals_and_positions() -> None:
    for value_, kind, want in (
        ("inf", "f32[2]", [HIGH] * 2),
        ("-inf", "f32[2]", [LOW] * 2),
        ("true", "i1[2]", [True] * 2),
        ("-7", "i64[2]", [-7] * 2),
        ("1/2", "f32[2]", [R.of(Fraction(1, 2))] * 2),
    ):
        assert evaluate([op("%0", "constant", [], kind, value=value_)], [], {}) == want
    assert evaluate([op("%0", "iota", [], "i64[2,3]", dim=1)], [], {}) == [0, 1, 2] * 2
    assert evaluate([op("%0", "iota", [], "f32[2,3]", dim=0)], [], {}) == [R.zero] * 3 + [R.one] * 3


def test_reductions_and_products() -> None:
    rng = random.Random(8)
    inputs = [["x", "f32[4,3]"], ["n", "i64[4,3]"], ["p", "i1[4,3]"], ["y", "f32[3,2]"]]
    for _ in range(8):
        grids = {
            "x": some_grid(rng, (4, 3)),
            "n": some_grid(rng, (4, 3)),
            "y": some_grid(rng, (3, 2)),
            "p": some_grid(rng, (4, 3), 2),
        }
        given = {
            v: {
                "cuts": [list(c) for c in g.cuts],
                "values": [str(bool(k)).lower() if v == "p" else str(k) for k in g.data],
            }
            for v, g in grids.items()
        }
        full = {v: dense(g) for v, g in grids.items()}
        for kind, exact in (("add", sum), ("max", max), ("min", min)):
            columns = [exact([full["x"][i, j] for i in range(4)]) for j in range(3)]
            reduce = op("%0", "reduce", ["x"], "f32[3]", dims=[0], kind=kind)
            assert evaluate([reduce], inputs, given) == [R.of(c) for c in columns]
            rows = [exact([full["n"][i, j] for j in range(3)]) for i in range(4)]
            assert evaluate([op("%0", "reduce", ["n"], "i64[4]", dims=[1], kind=kind)], inputs, given) == rows
        for kind, test in (("and", all), ("or", any)):
            want = test(full["p"].values())
            assert evaluate([op("%0", "reduce", ["p"], "i1[]", dims=[0, 1], kind=kind)], inputs, given) == [
                want
            ]
        dot = op(
            "%0",
            "dot_general",
            ["x", "y"],
            "f32[4,2]",
            lhs_batch=[],
            rhs_batch=[],
            lhs_contract=[1],
            rhs_contract=[0],
        )
        assert evaluate([dot], inputs, given) == [
            R.of(sum(full["x"][i, k] * full["y"][k, j] for k in range(3))) for i in range(4) for j in range(2)
        ]
        batched = op(
            "%0",
            "dot_general",
            ["n", "n"],
            "i64[3]",
            lhs_batch=[1],
            rhs_batch=[1],
            lhs_contract=[0],
            rhs_contract=[0],
        )
        assert evaluate([batched], inputs, given) == [
            sum(full["n"][i, j] ** 2 for i in range(4)) for j in range(3)
        ]
        moved = [
            op("%0", "transpose", ["n"], "i64[3,4]", perm=[1, 0]),
            op("%1", "broadcast_in_dim", ["%0"], "i64[3,2,4]", dims=[0, 2]),
        ]
        assert evaluate(moved, inputs, given) == [
            full["n"][k, j] for j in range(3) for _ in range(2) for k in range(4)
        ]
        padded = [
            op("%0", "constant", [], "i64[]", value="-9"),
            op("%1", "pad", ["n", "%0"], "i64[6,4]", low=[1, 0], high=[1, 1]),
        ]
        assert evaluate(padded, inputs, given) == [
            full["n"][i - 1, j] if 1 <= i < 5 and j < 3 else -9 for i in range(6) for j in range(4)
        ]


def test_a_gather_out_of_range() -> None:
    """No real number for reals, not known for integers; a select may drop it."""
    inputs = [["x", "f32[2]"], ["n", "i64[2]"], ["i", "i64[3]"]]
    given = {"x": block((2,), 5, 6), "n": block((2,), 5, 6), "i": block((3,), 1, 2, -1)}
    for v, lost in (("x", NOWHERE), ("n", None)):
        kind = "f32[3]" if v == "x" else "i64[3]"
        found = evaluate([op("%0", "gather", [v, "i"], kind, axis=0, batch_dims=0)], inputs, given)
        assert found == [R.of(6) if v == "x" else 6, lost, lost]


@pytest.mark.parametrize(
    "name,change,reason",
    [
        ("x", {"cuts": [[0, 4]]}, "a list of 2 lines of cuts"),
        ("x", {"cuts": [[0, 4], [0, 5]]}, "no integer in"),
        ("x", {"cuts": [[0, 4], [0, 2]]}, "bad cuts"),
        ("x", {"cuts": [[1, 4], [0, 3]]}, "bad cuts"),
        ("x", {"cuts": [[0, 2, 2, 4], [0, 3]]}, "bad cuts"),
        ("x", {"cuts": [[], [0, 3]]}, "bad cuts"),
        ("x", {"cuts": [[0], [0, 3]]}, "bad cuts"),
        ("x", {"values": []}, "a list of 1"),
        ("x", {"values": ["1", "2"]}, "a list of 1"),
        ("x", {"values": ["true"]}, "no rational"),
        ("n", {"values": ["1/2"]}, "no integer"),
        ("n", {"values": ["5"]}, r"no integer in \[-1, 5\)"),
        ("n", {"values": ["-2"]}, r"no integer in \[-1, 5\)"),
        ("p", {"values": ["1"]}, "no boolean"),
        ("m", {"values": [str(1 << 62)]}, "no integer in"),
        ("m", {"values": [str((-1 << 62) - 1)]}, "no integer"),
    ],
)
def test_blocks(name: str, change: dict[str, Any], reason: str) -> None:
    inputs = [["x", "f32[4,3]"], ["n", "i64[2]"], ["p", "i1[2]"], ["m", "i64[2]"]]
    given = {
        "x": block((4, 3), 1),
        "n": block((2,), 4),
        "p": block((2,), True),
        "m": block((2,), (1 << 62) - 1),
    }
    checked = plan(program(inputs, [], []), ranges={"n": [-1, 5]})
    machine = Machine(checked, given, Fraction(0), R)
    assert [element(machine.grids[machine.number(-1, v)], (0, 0)[: 1 + (v == "x")]) for v in "xnpm"] == [
        R.one,
        4,
        True,
        (1 << 62) - 1,
    ]
    Machine(checked, given | {"n": block((2,), -1), "m": block((2,), -1 << 62)}, Fraction(0), R)
    given[name] |= change
    with pytest.raises(Malformed, match=f"witness: inputs: {name}.*{reason}"):
        Machine(checked, given, Fraction(0), R)


# Ranks ------------------------------------------------------------------------------------------------------

MESH = (("a", 2), ("b", 3))
GROUPS = {
    "a": {"axes": ["a"], "ranks": [[0, 3], [1, 4], [2, 5]]},
    "b": {"axes": ["b"], "ranks": [[0, 1, 2], [3, 4, 5]]},
    "back": {"axes": [], "ranks": [[5, 4, 3, 2, 1, 0]]},
}
BOXES = [{"a": [0, 1], "b": [0, 3]}, {"a": [1, 2], "b": [0, 3]}]
VALUES = [3, 1, 4, 1, 5, 9]


def ranked(ops: list[Any], shape: str = "f32[1]") -> Machine:
    """x holds VALUES[rank] at every rank."""
    own = program([["x", shape]], ops, [])
    spec = program([["x", shape.replace("1]", "6]")]], [], [])
    pieces = [piece(f"c{i}", [1], [z(0)], [{"a": 3, "b": 1, "z0": 1}]) for i in range(2)]
    checked = plan(spec, own, MESH, BOXES, groups=GROUPS, inputs=[relation("x", "x", *pieces)])
    return Machine(checked, {"x": block((6,), *VALUES)}, Fraction(3), R)


def at_rank(machine: Machine, rank: int, name: str) -> list[Any]:
    grid = machine.grids[machine.number(rank, name)]
    return [element(grid, i) for i in indices(shape_of(grid))]


def test_ranks_and_classes() -> None:
    machine = ranked([])
    assert [machine.owner(r) for r in range(-1, 6)] == ["s", "c0", "c0", "c0", "c1", "c1", "c1"]
    assert [machine.coordinates(r) for r in (0, 2, 3, 5)] == [
        {"a": 0, "b": 0},
        {"a": 0, "b": 2},
        {"a": 1, "b": 0},
        {"a": 1, "b": 2},
    ]
    assert [at_rank(machine, r, "x") for r in range(6)] == [[R.of(v)] for v in VALUES]
    with pytest.raises(Malformed, match="witness: y is no value"):
        machine.number(0, "y")


@pytest.mark.parametrize(
    "group,fibres",
    [("a", [[0, 3], [1, 4], [2, 5]]), ("b", [[0, 1, 2], [3, 4, 5]]), ("back", [[5, 4, 3, 2, 1, 0]])],
)
@pytest.mark.parametrize("shape", ["f32[1]", "i64[1]"])
def test_collectives(group: str, fibres: list[list[int]], shape: str) -> None:
    """In the order in which the group lists its ranks, factorised or not."""
    k, kind = len(fibres[0]), shape[:3]
    ops = [
        op("%0", "all_gather", ["x"], f"{kind}[{k}]", group=group, dim=0, seq=0),
        *(
            op(f"%{1 + i}", "all_reduce", ["x"], f"{kind}[1]", group=group, kind=how, seq=1 + i)
            for i, how in enumerate(("add", "max", "min"))
        ),
        op("%4", "reduce_scatter", ["%0"], f"{kind}[1]", group=group, kind="add", dim=0, seq=4),
        op("%5", "all_to_all", ["%0"], f"{kind}[{k}]", group=group, split_dim=0, concat_dim=0, seq=5),
        op("%6", "broadcast_in_dim", ["%0"], f"{kind}[2,{k}]", dims=[1]),
        op("%7", "all_to_all", ["%6"], f"{kind}[{2 * k},1]", group=group, split_dim=1, concat_dim=0, seq=6),
        op("%8", "all_gather", ["%6"], f"{kind}[2,{k * k}]", group=group, dim=1, seq=7),
    ]
    machine = ranked(ops, shape)

    def made(v: int) -> Any:
        return R.of(v) if kind == "f32" else v

    for line in fibres:
        values = [VALUES[r] for r in line]
        for place, rank in enumerate(line):
            assert at_rank(machine, rank, "%0") == list(map(made, values))
            assert [at_rank(machine, rank, f"%{i}") for i in (1, 2, 3)] == [
                [made(sum(values))],
                [made(max(values))],
                [made(min(values))],
            ]
            assert at_rank(machine, rank, "%4") == [made(k * values[place])]
            assert at_rank(machine, rank, "%5") == [made(values[place])] * k
            assert at_rank(machine, rank, "%7") == [made(values[place])] * 2 * k
            assert at_rank(machine, rank, "%8") == list(map(made, values * k)) * 2


def test_groups_of_one() -> None:
    """Over an axis of size 1 every collective gives what the rank holds."""
    ops = [
        op("%0", "all_gather", ["x"], "f32[2]", group="r", dim=0, seq=0),
        op("%1", "all_to_all", ["%0"], "f32[2]", group="r", split_dim=0, concat_dim=0, seq=1),
        op("%2", "all_reduce", ["%1"], "f32[2]", group="r", kind="add", seq=2),
        op("%3", "reduce_scatter", ["%2"], "f32[2]", group="r", kind="add", dim=0, seq=3),
    ]
    own = program([["x", "f32[2]"]], ops, [])
    whole = relation("x", "x", piece("c0", [2], [z(0)], [z(0)]))
    group = {"r": {"axes": ["r"], "ranks": [[0]]}}
    checked = plan(program([["x", "f32[2]"]], [], []), own, groups=group, inputs=[whole])
    machine = Machine(checked, {"x": block((2,), 5, 6)}, Fraction(0), R)
    assert all(at_rank(machine, 0, f"%{i}") == [R.of(5), R.of(6)] for i in range(4))


def test_rank_dependent_numbers() -> None:
    ops = [
        op("%0", "constant", [], "f32[1]", value={"a": 10, "b": 1}),
        op("%1", "constant", [], "i64[1]", value={"b": -2, "": 1}),
        op("%2", "all_gather", ["x"], "f32[3]", group="b", dim=0, seq=0),
        op("%3", "slice", ["%2"], "f32[1]", start=[{"b": 1}], stride=[1]),
    ]
    machine = ranked(ops)
    for rank in range(6):
        a, b = divmod(rank, 3)
        assert at_rank(machine, rank, "%0") == [R.of(10 * a + b)]
        assert at_rank(machine, rank, "%1") == [1 - 2 * b]
        assert at_rank(machine, rank, "%3") == [R.of(VALUES[rank])]


def test_collectives_that_wait_for_one_another() -> None:
    """Two classes that meet in the opposite order never finish; there is nothing to compare."""
    one = op("%0", "all_reduce", ["x"], "f32[1]", group="a", kind="add", seq=0)
    two = op("%1", "all_reduce", ["%0"], "f32[1]", group="a", kind="add", seq=1)
    programs = [
        program([["x", "f32[1]"]], [one, two], []),
        program(
            [["x", "f32[1]"]],
            [one | {} if False else [*two[:2], ["x"], *two[3:]], [*one[:2], ["%1"], *one[3:]]],
            [],
        ),
    ]
    checked = read_plan(
        dump(
            plan_of(
                [["a", 2]],
                program([], [], []),
                [{"name": f"c{i}", "box": {"a": [i, i + 1]}, "program": p} for i, p in enumerate(programs)],
                [],
                [],
                {"a": {"axes": ["a"], "ranks": [[0, 1]]}},
            )
        )
    )
    machine = Machine(checked, {}, Fraction(0), R)
    with pytest.raises(
        Rejected, match=r"^obligation 18 .* at all_reduce %\d: collectives wait for one another"
    ):
        machine.number(0, "%1")


def test_the_work_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = ranked([op("%0", "negate", ["x"], "f32[1]")])
    before = machine.work
    machine.number(0, "%0")
    spent = machine.work - before
    assert before == 6 and spent == 7, "six cells of x; five visits and two values of one cell"
    for cap in (13, 12):
        monkeypatch.setattr(witness, "MAX_WORK", cap)
        again = ranked([op("%0", "negate", ["x"], "f32[1]")])
        if cap == 13:
            again.number(0, "%0")
        else:
            with pytest.raises(Undecided, match="witness: the replay takes too many cells"):
                again.number(0, "%0")


# Inputs -----------------------------------------------------------------------------------------------------


def inputs(
    *relations: Any, local: str = "f32[4]", spec: str = "f32[4]", values: Any = (1, 2, 3, 4)
) -> list[Any]:
    """What both ranks hold of x."""
    own = program([["x", local]], [], [])
    checked = plan(program([["x", spec]], [], []), own, (("r", 2),), inputs=list(relations))
    machine = Machine(checked, {"x": block((4,), *values)}, Fraction(7), R)
    return [at_rank(machine, r, "x") for r in range(2)]


def test_inputs_follow_their_relation() -> None:
    def line(*values: Any) -> list[Any]:
        return [R.of(Fraction(v)) for v in values]

    whole = piece("c0", [4], [z(0)], [z(0)])
    assert inputs(relation("x", "x", whole)) == [line(1, 2, 3, 4)] * 2
    assert inputs() == [line(7, 7, 7, 7)] * 2, "junk where nothing is given"
    assert inputs(relation("x", "x", whole, coef="1/2")) == [line("1/2", 1, "3/2", 2)] * 2
    shard = piece("c0", [2], [z(0)], [{"r": 2, "z0": 1}])
    assert inputs(relation("x", "x", shard), local="f32[2]") == [line(1, 2), line(3, 4)]
    assert inputs(relation("x", "x", shard)) == [line(1, 2, 7, 7), line(3, 4, 7, 7)]
    turned = piece("c0", [2, 2], [{"z1": 2, "z0": 1}], [{"z0": 2, "z1": 1}])
    assert inputs(relation("x", "x", turned)) == [line(1, 3, 2, 4)] * 2
    moved = piece("c0", [2], [{"z0": 2, "": 1}], [{"z0": 1, "": 2}])
    assert inputs(relation("x", "x", moved)) == [line(7, 3, 7, 4)] * 2
    one = piece("c0", [1, 3], [{"z1": 1, "": 1}], [z(1)])
    assert inputs(relation("x", "x", one)) == [line(7, 1, 2, 3)] * 2
    for kind, want in (
        ("add", [line(2, 4, 6, 8), line(0, 0, 0, 0)]),
        ("max", [line(2, 4, 6, 8)] * 2),
        ("min", [line(2, 4, 6, 8)] * 2),
    ):
        assert inputs(relation("x", "x", whole, coef="2", reduce=[kind, ["r"]])) == want
    ints = inputs(relation("x", "x", whole), local="i64[4]", spec="i64[4]")
    assert ints == [[1, 2, 3, 4]] * 2 and inputs(local="i64[4]", spec="i64[4]") == [[0] * 4] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        piece("c0", [2], [{"z0": -1, "": 1}], [z(0)]),
        piece("c0", [2, 2], [z(0)], [z(0)]),
        piece("c0", [2], [{"z0": 1}], [0]) | {"sizes": [2, 2]},
        piece("c0", [2, 2], [{"z0": 1, "z1": 1}], [{"z0": 2, "z1": 1}]),
    ],
)
def test_layouts_outside_the_reach(wrong: Any) -> None:
    with pytest.raises(Rejected, match=r"^obligation 18 .*the layout of input x is outside the reach"):
        inputs(relation("x", "x", wrong))


# Replays ----------------------------------------------------------------------------------------------------


def replayed(
    plan_ops: list[Any], spec_ops: list[Any], fact: Fact, value_: str = "5", kind: str = "f32", **more: Any
) -> Any:
    own = program([["x", f"{kind}[2]"]], plan_ops, [])
    whole = piece("c0", [2], [z(0)], [z(0)])
    checked = plan(
        program([["x", f"{kind}[2]"]], spec_ops, []), own, (("r", 2),), inputs=[relation("x", "x", whole)]
    )
    item = {
        "output": 0,
        "piece": 0,
        "symbols": {"z0": 1},
        "junk": "0",
        "inputs": {"x": block((2,), value_)},
    } | more
    return replay(checked, fact, item)


NEGATE, SQRT = op("%0", "negate", ["x"], "f32[2]"), op("%0", "sqrt", ["x"], "f32[2]")
Z0, RANK = Affine.symbol("z0"), Affine.symbol("r")


def claim(lhs: Any, rhs: Any = Tensor("s", "x"), coef: int = 1) -> Fact:  # noqa: B008
    left = (Z0,) if isinstance(lhs, Reduced) else (Affine(0), Z0)
    return Fact(lhs, rhs, Fraction(coef), (("z0", 0, 2),), left, (Z0,))


def test_what_a_replay_shows() -> None:
    x, y = Tensor("c0", "x"), Tensor("c0", "%0")
    shown = replayed([NEGATE], [], claim(y, coef=2))
    assert (shown.plan, shown.spec, shown.symbols) == ((-5, -5), (10, 10), {"z0": 1})
    for fact, ops in ((claim(x), []), (claim(y, coef=-1), [NEGATE])):
        with pytest.raises(Rejected, match=r"^obligation 18 .*the sides are not shown to differ"):
            replayed(ops, [], fact)
    for kind, want in (("add", (10, 10)), ("max", (5, 5)), ("min", (5, 5))):
        shown = replayed([], [], claim(Reduced(kind, ("r",), (x,)), coef=3))
        assert (shown.plan, shown.spec) == (want, (15, 15))
    with pytest.raises(Rejected, match=r"^obligation 18 .*the sides are not shown to differ"):
        replayed([], [], claim(Reduced("add", ("r",), (x,)), coef=2))
    assert replayed([SQRT], [], claim(y), "-4").plan is None, "no real number on the plan's side"
    with pytest.raises(Rejected, match=r"^obligation 18 .*meet or are not finite"):
        replayed([], [SQRT], claim(x, Tensor("s", "%0")), "-4")
    infinite = op("%0", "constant", [], "f32[2]", value="inf")
    assert replayed([infinite], [], claim(y)).plan is None
    unknown = [
        op("%0", "constant", [], "f32[2]", value="1/3"),
        op("%1", "subtract", ["%0", "%0"], "f32[2]"),
        op("%2", "divide", ["x", "%1"], "f32[2]"),
    ]
    for plan_ops, spec_ops, fact in (
        (unknown, [], claim(Tensor("c0", "%2"))),
        ([], unknown, claim(x, Tensor("s", "%2"))),
    ):
        with pytest.raises(Rejected, match=r"^obligation 18 .*not shown to differ"):
            replayed(plan_ops, spec_ops, fact)


def test_integers_differ_or_not() -> None:
    same, other = Tensor("c0", "x"), Tensor("c0", "%0")
    negate = op("%0", "negate", ["x"], "i64[2]")
    shown = replayed([negate], [], claim(other), kind="i64")
    assert (shown.plan, shown.spec) == ((-5, -5), (5, 5))
    with pytest.raises(Rejected, match=r"^obligation 18 .*the two sides are equal or undefined"):
        replayed([], [], claim(same), kind="i64")
    far = [
        op("%0", "constant", [], "i64[2]", value="9"),
        op("%1", "gather", ["x", "%0"], "i64[2]", axis=0, batch_dims=0),
    ]
    for plan_ops, spec_ops, fact in (
        (far, [], claim(Tensor("c0", "%1"))),
        ([], far, claim(same, Tensor("s", "%1"))),
    ):
        with pytest.raises(Rejected, match=r"^obligation 18 .*the two sides are equal or undefined"):
            replayed(plan_ops, spec_ops, fact, kind="i64")


def test_facts_that_a_replay_does_not_read() -> None:
    x = Tensor("c0", "x")
    with pytest.raises(Malformed, match="the right-hand side must be a specification tensor"):
        replayed([], [], claim(x, Reduced("add", ("r",), (x,))))
    with pytest.raises(Malformed, match="the fact does not span the rank"):
        replayed([], [], claim(Tensor("c9", "x")))
    with pytest.raises(Malformed, match="the fact does not span the rank"):
        replayed([], [], claim(Reduced("add", ("r",), (x, x))))
    with pytest.raises(Malformed, match=r"no integer in \[0, 2\)"):
        replayed([], [], claim(x), symbols={"z0": 2})
    with pytest.raises(Malformed, match=r"junk.*no rational"):
        replayed([], [], claim(x), junk=0)


def test_the_rank_that_a_fact_names() -> None:
    """r = 1: the constant of that rank, against what rank 0 would show."""
    own = [op("%0", "constant", [], "f32[2]", value={"r": 4})]
    fact = Fact(
        Tensor("c0", "%0"), Tensor("s", "x"), Fraction(1), (("r", 0, 2), ("z0", 0, 2)), (RANK, Z0), (Z0,)
    )
    assert replayed(own, [], fact, symbols={"r": 1, "z0": 0}).plan == (4, 4)
    assert replayed(own, [], fact, symbols={"r": 0, "z0": 0}).plan == (0, 0)
