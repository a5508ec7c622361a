"""Input relations that would assume something about the specification are refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.determined import check_determined, undetermined
from certificates.plan.plan import Piece, Relation

Z0, Z1, Z2 = (Affine.symbol(f"z{i}") for i in range(3))


def relation(*pieces: Piece, spec: str = "w") -> Relation:
    return Relation(spec, "w", pieces)


def piece(sizes: tuple[int, ...], *plan: Affine, spec: tuple[Affine, ...] = (Z0,)) -> Piece:
    return Piece("c0", sizes, plan, spec)


@pytest.mark.parametrize(
    ("sizes", "forms", "loose"),
    [
        ((4, 5), (Z0, Z1), []),
        ((4, 5), (Z0.scale(5) + Z1,), []),
        ((4, 5), (Z0.scale(4) + Z1,), ["z0", "z1"]),  # 4*z0 meets z1 = 4
        ((4, 5), (Z1,), ["z0"]),
        ((1, 5), (Z1,), []),  # a digit of size 1 has nothing to say
        ((4, 5), (Z0 + Z1, Z1), []),  # z1 from the second form, then z0 from the first
        ((3, 4, 5), (Z0.scale(20) + Z1.scale(5) + Z2,), []),
        ((3, 4, 5), (Z0.scale(19) + Z1.scale(5) + Z2,), ["z0", "z1", "z2"]),
        ((4,), (Z0.scale(-2) + 6,), []),
    ],
)
def test_injective_forms(sizes: tuple[int, ...], forms: tuple[Affine, ...], loose: list[str]) -> None:
    every = tuple(Affine.symbol(f"z{i}") for i in range(len(sizes)))
    assert undetermined(piece(sizes, *forms, spec=every)) == loose


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.lists(st.integers(-6, 6), min_size=3, max_size=3), min_size=1, max_size=2),
)
def test_what_counts_as_determined_is_injective(sizes: list[int], coefs: list[list[int]]) -> None:
    forms = [Affine.of(0, {f"z{i}": c for i, c in enumerate(row[: len(sizes)])}) for row in coefs]
    every = tuple(Affine.symbol(f"z{i}") for i in range(len(sizes)))
    if not undetermined(Piece("c0", tuple(sizes), tuple(forms), every)):
        points = [
            {f"z{i}": z for i, z in enumerate(p)} for p in itertools.product(*(range(n) for n in sizes))
        ]
        assert len({tuple(f.evaluate(p) for f in forms) for p in points}) == len(points)


@pytest.mark.parametrize(
    "pieces",
    [
        (piece((4,), Z0), piece((4,), Z0 + 4)),
        (piece((4,), Z0.scale(3)), piece((4,), Z0.scale(3) + 1), piece((4,), Z0.scale(3) + 2)),
        # Heads of 4 rows, interleaved q k: neither intervals nor residues tell them apart.
        (piece((3, 4), Z0.scale(8) + Z1), piece((3, 4), Z0.scale(8) + Z1 + 4)),
        (piece((4, 2), Z0, Z1), piece((4, 2), Z0, Z1 + 2)),
    ],
)
def test_disjoint_pieces_are_accepted(pieces: tuple[Piece, ...]) -> None:
    check_determined([relation(*pieces)])
    check_determined([relation(p) for p in pieces])


@pytest.mark.parametrize(
    "pieces",
    [
        (piece((4,), Z0), piece((4,), Z0 + 3)),
        (piece((4,), Z0.scale(3)), piece((2,), Z0.scale(2) + 1)),
        (piece((4, 2), Z0, Z1), piece((4, 2), Z0, Z1 + 1)),
    ],
)
def test_overlapping_pieces_are_refused(pieces: tuple[Piece, ...]) -> None:
    with pytest.raises(FormatError, match="input relations of w on c0: pieces of w and w may determine"):
        check_determined([relation(*pieces)])


def test_pieces_of_other_classes_and_tensors_do_not_meet() -> None:
    a = piece((4,), Z0)
    check_determined([relation(a), Relation("w", "v", (a,)), relation(Piece("c1", a.sizes, a.plan, a.spec))])


def test_the_number_of_pieces_is_bounded() -> None:
    with pytest.raises(FormatError, match="more than 1024 pieces"):
        check_determined([relation(*(piece((1,), Affine(i)) for i in range(1025)))])
