"""Input and output relations (obligations 15 and 16): what is covered and given once, by brute force."""

from __future__ import annotations

import itertools
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Rejected, Undecided
from checker.language.affine import Affine
from checker.language.plan import Piece, Plan
from checker.reading.plan import read_plan
from checker.rules import relations
from checker.rules.relations import check_once, check_outputs, covers, determined, disjoint, image

sys.path.insert(0, str(Path(__file__).parents[1]))
import samples
from samples import dump, piece, plan_of, program, relation, z


def form(const: int, **terms: int) -> Affine:
    return Affine(const, tuple(sorted((s, c) for s, c in terms.items() if c)))


def made(sizes: tuple[int, ...], plan: list[Affine], spec: list[Affine] | None = None) -> Piece:
    return Piece("c0", sizes, tuple(plan), tuple(spec or plan))


def points(p: Piece) -> list[tuple[int, ...]]:
    """The plan index of every value of the digits that the piece mentions."""
    names = sorted({s for f in (*p.plan, *p.spec) for s in f.names()})
    values = itertools.product(*(range(p.sizes[int(s[1:])]) for s in names))
    at = (dict(zip(names, v, strict=True)) for v in values)
    return [tuple(f.const + sum(c * here[s] for s, c in f.terms) for f in p.plan) for here in at]


def random_form(rng: random.Random, digits: int) -> Affine:
    return form(rng.randrange(4), **{f"z{i}": rng.choice((0, 0, 1, 1, 2, 3, 6, -1)) for i in range(digits)})


def random_piece(rng: random.Random) -> Piece:
    sizes = tuple(rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 3)))
    forms = [random_form(rng, len(sizes)) for _ in range(rng.randint(1, 2))]
    return made(sizes, forms, [*forms, random_form(rng, len(sizes))])


def test_what_is_determined_is_placed_once() -> None:
    """Never wrong; and right wherever the digits are in mixed radix."""
    rng, seen = random.Random(5), set()
    for _ in range(600):
        p = random_piece(rng)
        once = len(set(points(p))) == len(points(p))
        seen.add((determined(p), once))
        assert once or not determined(p), p
    assert (True, True) in seen and (False, False) in seen


@pytest.mark.parametrize(
    "sizes,plan,good",
    [
        ((2, 3), [form(0, z0=3, z1=1)], True),
        ((2, 3), [form(0, z0=2, z1=1)], False),
        ((1,), [form(0)], True),
        ((2, 3), [form(5, z0=1, z1=2)], True),
        ((2, 3), [form(0, z0=-3, z1=1)], True),
        ((3, 3), [form(0, z0=3, z1=1)], True),
        ((3, 3), [form(0, z0=1, z1=1), form(0, z1=1)], True),
        ((3, 3), [form(0, z1=1), form(0, z0=1, z1=1)], True),
        ((3, 3), [form(0, z0=1, z1=1)], False),
        ((2, 3, 4), [form(0, z0=12, z1=4, z2=1)], True),
        ((2, 3, 4), [form(0, z0=11, z1=4, z2=1)], False),
        ((2, 1), [form(0, z0=1, z1=1)], True),
        ((2, 2), [form(0, z0=1)], False),
    ],
)
def test_mixed_radix(sizes: tuple[int, ...], plan: list[Affine], good: bool) -> None:
    spec = [form(0, **{f"z{i}": 1}) for i in range(len(sizes))]
    assert determined(made(sizes, plan, spec)) == good


def test_what_is_disjoint_shares_no_element() -> None:
    """Exactly so in one dimension; in more, one dimension must tell the pieces apart."""
    rng, seen = random.Random(7), set()
    for _ in range(1500):
        a, b = random_piece(rng), random_piece(rng)
        if len(a.plan) != len(b.plan):
            continue
        axes = [({p[d] for p in points(a)}, {p[d] for p in points(b)}) for d in range(len(a.plan))]
        want = any(not left & right for left, right in axes)
        assert disjoint(a, b, [10**6]) == want, (a, b)
        seen.add(want)
    assert seen == {True, False}


def test_large_pieces_are_told_apart_by_range_and_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the positions that are listed one by one."""
    big = 1 << 21

    def line(const: int, step: int, n: int = big) -> Piece:
        return made((n,), [form(const, z0=step)])

    for a, b, want in ((line(0, 2), line(1, 2), True), (line(0, 2), line(2, 2), False),
                       (line(0, 1), line(big, 1), True), (line(0, 1), line(big - 1, 1), False),
                       (line(big, 1), line(0, 1), True), (line(big - 1, 1), line(0, 1), False),
                       (line(0, 4), line(6, 6), False), (line(0, 4), line(7, 6), True),
                       (line(0, 6), line(3, 6), True), (line(0, 1), line(1, 1), False)):  # fmt: skip
        assert disjoint(a, b, [1 << 24]) == want, (a, b)
    apart = line(0, 2, 2), line(3, 2, 2)
    listed = made((2, 2), [form(0, z0=1, z1=4)]), made((1,), [form(2)])
    assert disjoint(*listed, [5]) and disjoint(*apart, [0])
    with pytest.raises(Undecided, match="the relations take too long to compare"):
        disjoint(*listed, [4])
    for cap, want in ((5, True), (4, False)):
        monkeypatch.setattr(relations, "MAX_POSITIONS", cap)
        assert disjoint(*listed, [100]) == want, "more positions than are listed: not shown to be disjoint"


# Coverage ---------------------------------------------------------------------------------------------------


def test_the_values_of_a_form() -> None:
    rng = random.Random(3)
    for _ in range(400):
        ranges = {f"z{i}": (lo := rng.randrange(-2, 3), lo + rng.choice((1, 2, 3, 5))) for i in range(3)}
        f = form(rng.randrange(-3, 4), **{s: rng.choice((0, 1, 2, 3, 7, -1, -4)) for s in ranges})
        names = sorted(f.names())
        want = {
            f.const + sum(c * dict(zip(names, v, strict=True))[s] for s, c in f.terms)
            for v in itertools.product(*(range(*ranges[s]) for s in names))
        }
        found = image(f, ranges)
        assert {v for low, high in found for v in range(low, high)} == want, (f, ranges)
        assert all(low < high for low, high in found)
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(found)), "separate and in order"


def test_long_lines_are_one_interval() -> None:
    """However many values: neighbours join before they are counted."""
    assert image(form(0, z0=1), {"z0": (0, 1 << 30)}) == [(0, 1 << 30)]
    assert image(form(0, z0=4, z1=1), {"z0": (0, 1 << 30), "z1": (0, 4)}) == [(0, 1 << 32)]


def test_too_many_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    f, ranges = form(0, z0=2, z1=10), {"z0": (0, 3), "z1": (0, 4)}
    monkeypatch.setattr(relations, "MAX_INTERVALS", 12)
    assert len(image(f, ranges)) == 12
    monkeypatch.setattr(relations, "MAX_INTERVALS", 11)
    with pytest.raises(Undecided, match="a relation has too many separate intervals"):
        image(f, ranges)


def test_covers() -> None:
    rng, seen = random.Random(11), set()
    for _ in range(500):
        shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(0, 3)))
        boxes = []
        for _ in range(rng.randint(0, 5)):
            box = []
            for n in shape:
                a, b = sorted((rng.randint(0, n), rng.randint(0, n)))
                box.append([(a, b)] if a < b else [(0, 1), (n - 1, n)] if n > 2 else [(0, n)])
            boxes.append(box)
        index = itertools.product(*map(range, shape))
        want = all(any(all(any(lo <= i < hi for lo, hi in line) for i, line in zip(at, box, strict=True))
                       for box in boxes) for at in index)  # fmt: skip
        assert covers(shape, boxes) == want, (shape, boxes)
        seen.add(want)
    assert seen == {True, False}


def test_too_many_pieces_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    split = [[[(0, 1)], [(0, 1)]], [[(0, 1)], [(1, 2)]], [[(1, 2)], [(0, 2)]]]
    for cap in (4, 3):
        monkeypatch.setattr(relations, "MAX_POSITIONS", cap)
        if cap == 4:
            assert covers((2, 2), split)
        else:
            with pytest.raises(Undecided, match="the output relations have too many pieces"):
                covers((2, 2), split)


# Plans ------------------------------------------------------------------------------------------------------


def plan(
    inputs: list[Any],
    outputs: list[Any],
    spec: int = 4,
    local: int = 4,
    ranks: int = 1,
    classes: int = 1,
    without: int = -1,
) -> Plan:
    """States x of these sizes; ranks over `r`, in classes of one rank if there are more; one without x."""
    given = program([["x", f"f32[{spec}]"]], [], [["x", "x"]])
    own = [program([["x", f"f32[{local}]"]], [], [["x", "x"]] * (i != without)) for i in range(classes)]
    boxes = [[i * ranks, (i + 1) * ranks] for i in range(classes)]
    return read_plan(
        dump(
            plan_of(
                [["r", ranks * classes]],
                given,
                [{"name": f"c{i}", "box": {"r": box}, "program": own[i]} for i, box in enumerate(boxes)],
                [relation("x", "x", *inputs)] if inputs else [],
                [relation("x", "x", *outputs)] if outputs else [],
            )
        )
    )


WHOLE = piece("c0", [4], [z(0)], [z(0)])


refuses = partial(samples.refuses, 16)


def test_outputs_are_covered() -> None:
    assert check_outputs(plan([], [WHOLE])) == []
    shard = piece("c0", [2], [z(0)], [{"r": 2, "z0": 1}])
    assert check_outputs(plan([], [shard], local=2, ranks=2)) == []
    with refuses("elements of the specification's output x are not covered"):
        check_outputs(plan([], [shard], local=2, spec=5, ranks=2))
    with refuses("elements of the specification's output x are not covered"):
        check_outputs(plan([], []))
    with refuses("elements of x in class c0 are not covered"):
        check_outputs(plan([], [piece("c0", [3], [z(0)], [z(0)])], spec=3))
    with refuses("elements of x in class c1 are not covered"):
        check_outputs(plan([], [WHOLE], classes=2))
    with refuses("elements of x in class c1 are not covered"):
        check_outputs(plan([], [WHOLE], classes=2, without=1))
    both = [WHOLE, WHOLE | {"class": "c1"}]
    assert check_outputs(plan([], both, classes=2)) == []
    diagonal = piece("c0", [2, 2], [{"z0": 2, "z1": 1}], [{"z0": 1, "z1": 1}])
    assert check_outputs(plan([], [diagonal], spec=3)) == []
    with refuses("specification's output x"):
        check_outputs(plan([], [diagonal]))


def test_a_symbol_twice_does_not_cover() -> None:
    """[z, z] is the diagonal, not the square that the values of both coordinates make up."""
    given = program([["x", "f32[2,2]"]], [], [["x", "x"]])
    own = program([["x", "f32[2]"]], [], [["x", "x"]])
    for spec, sizes, forms in (([z(0), z(0)], [2], [z(0)]), ([z(0), z(1)], [2, 2], None)):
        if forms is None:
            own = given
        made_plan = read_plan(
            dump(
                plan_of(
                    [["r", 1]],
                    given,
                    [{"name": "c0", "box": {"r": [0, 1]}, "program": own}],
                    [],
                    [relation("x", "x", piece("c0", sizes, forms or spec, spec))],
                )
            )
        )
        if forms is None:
            assert check_outputs(made_plan) == []
        else:
            with refuses("elements of the specification's output x are not covered"):
                check_outputs(made_plan)


def test_padding_stays_open_on_both_sides() -> None:
    """A state of four elements of which three are real: noted, if they enter and leave alike."""
    three = piece("c0", [3], [z(0)], [z(0)])
    assert check_outputs(plan([three], [three], spec=3)) == [
        "1 elements of x at every rank of class c0 are padding"
    ]
    moved = piece("c0", [3], [{"z0": 1, "": 1}], [z(0)])
    for inputs in ([], [moved], [piece("c0", [2], [z(0)], [z(0)])]):
        with refuses("elements of x in class c0 are not covered"):
            check_outputs(plan(inputs, [three], spec=3))


@pytest.mark.parametrize(
    "pieces,reason",
    [
        ([piece("c0", [4, 2], [z(0)], [z(0)])], None),
        (
            [piece("c0", [2, 2], [{"z0": 1, "z1": 1}], [{"z0": 2, "z1": 1}])],
            "a piece may give an element twice",
        ),
        (
            [piece("c0", [2], [z(0)], [z(0)]), piece("c0", [2], [{"z0": 1, "": 1}], [z(0)])],
            "two pieces may give one element",
        ),
        ([piece("c0", [2], [z(0)], [z(0)]), piece("c0", [2], [{"z0": 1, "": 2}], [z(0)])], None),
    ],
)
def test_once(pieces: list[Any], reason: str | None) -> None:
    for number in (15, 16):
        checked = plan(pieces, [])
        if reason is None:
            assert check_once(checked.inputs, number) == {("c0", "x"): 4}
        else:
            with pytest.raises(Rejected, match=rf"^obligation {number} .* at x in class c0: {reason}"):
                check_once(checked.inputs, number)


def test_outputs_are_given_once() -> None:
    with refuses("two pieces may give one element", at="at x in class c0"):
        check_outputs(plan([], [WHOLE, WHOLE]))


def test_pieces_of_one_tensor_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    single = [piece("c0", [1], [i], [i]) for i in range(4)]
    for cap in (4, 3):
        monkeypatch.setattr(relations, "MAX_PIECES", cap)
        if cap == 4:
            assert check_once(plan(single, []).inputs, 15) == {("c0", "x"): 4}
        else:
            with pytest.raises(Rejected, match=r"^obligation 15 .*there are more than 3 pieces"):
                check_once(plan(single, []).inputs, 15)


def test_classes_stand_in_any_order() -> None:
    """Neighbours share no rank, whichever is listed first."""
    own = program([], [], [])
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        classes = [{"name": f"c{i}", "box": {"r": [i, i + 1]}, "program": own} for i in order]
        assert len(read_plan(dump(plan_of([["r", 3]], own, classes, [], []))).classes) == 3
