"""Boxes of the mesh from traced ranks; no PyTorch program is run."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

import pytest

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh
from certificates.plan.types import TensorType
from orchestrator.capture.builder import Draft, Met
from orchestrator.capture.errors import FitError
from orchestrator.capture.fitting import Sample, summarise
from orchestrator.capture.grid import MOST, Grid, grid_samples, samples
from orchestrator.capture.lowering import RankProgram
from orchestrator.capture.tracing import RankTrace


def program(value: int, extra: int = 0) -> RankProgram:
    type_ = TensorType("i64", ())
    drafts = [
        Draft(f"%{i}", "constant", (), type_, (("value", Affine(value)),), None) for i in range(1 + extra)
    ]
    return RankProgram({}, tuple(drafts), {"y": "%0"}, ())


def stage(pp: int, value: int, extra: int = 0) -> RankProgram:
    """A constant is added to the stage's own parameter."""
    type_ = TensorType("i64", ())
    constant = Draft("%0", "constant", (), type_, (("value", Affine(value)),), None)
    adds = [Draft(f"%{1 + i}", "add", (f"params.{pp}.w", "%0"), type_, (), None) for i in range(1 + extra)]
    return RankProgram({f"params.{pp}.w": type_}, (constant, *adds), {f"params.{pp}.w": "%1"}, ())


def grid(mesh: dict[str, int], of, most: int = MOST) -> tuple[Grid, list[int]]:
    traced: list[int] = []

    def tracer(ranks: Iterable[int], known: Container[str], _needed: object) -> Iterator[Sample]:
        for rank in ranks:
            traced.append(rank)
            yield summarise(RankTrace(rank, of(**Mesh(mesh).coordinates(rank)), {}), known)

    made = Grid(Mesh(mesh), tracer, most)
    made.fill()
    return made, traced


def test_small_axes_are_traced_completely_and_large_ones_sampled() -> None:
    assert samples(8) == [list(range(8)), [0, 1, 4, 6, 7], [0, 1, 6, 7], [0, 1, 7]]
    assert samples(64) == [[0, 1, 32, 62, 63], [0, 1, 62, 63], [0, 1, 63]]
    assert [samples(n) for n in (1, 2, 3)] == [[[0]], [[0, 1]], [[0, 1, 2]]]


def test_samples_of_many_axes_stay_within_the_budget() -> None:
    assert grid_samples([64, 8]) == [[0, 1, 32, 62, 63], list(range(8))]
    assert grid_samples([32, 64, 8]) == [[0, 1, 16, 30, 31], [0, 1, 32, 62, 63], list(range(8))]
    assert grid_samples([64, 8], most=8) == [[0, 1, 62, 63], [0, 1, 6, 7]]
    assert grid_samples([64, 8], most=6) == [[0, 1, 63], [0, 1, 7]]


def test_affine_scalars_of_a_large_mesh() -> None:
    made, traced = grid({"dp": 64, "tp": 4}, lambda dp, tp: program(251 * dp + 16032 * tp + 7))
    (only,) = made.classes()
    assert only.box == {"dp": (0, 64), "tp": (0, 4)}
    assert only.forms == (Affine.of(7, {"dp": 251, "tp": 16032}),)
    # Four corners, three coordinates of dp and two of tp between them.
    assert len(traced) == 9 and list(only.traced) == sorted(traced)


def test_a_mesh_of_few_ranks_is_traced_whole() -> None:
    made, traced = grid({"dp": 4, "tp": 4}, lambda dp, tp: program(dp + tp))
    assert sorted(traced) == list(range(16)) and len(made.classes()) == 1


@pytest.mark.parametrize("mesh", [{"dp": 64, "tp": 16}, {"rep": 16, "dp": 64, "tp": 16}])
def test_a_product_of_coordinates_shows_at_the_corners(mesh: dict[str, int]) -> None:
    """Every line through the first rank is affine, the forms are not."""
    made, _ = grid(mesh, lambda dp, tp, rep=1: program(rep * dp * tp))
    with pytest.raises(FitError, match="but 0 gives 0"):
        made.classes()


def test_few_ranks_are_traced_again_for_what_the_last_one_needs_of_them() -> None:
    """Only the last stage reads the loss; the others are told before most of them are traced, and the classes
    are those that come of it, not of what was traced before."""
    mesh = Mesh({"pp": 4, "tp": 8})
    loss = ("all", 0, "all_reduce")
    traced: list[int] = []

    def tracer(ranks: Iterable[int], known: Container[str], needed: Container[Met]) -> Iterator[Sample]:
        for rank in ranks:
            traced.append(rank)
            keeps = rank >= 24 or loss in needed
            made = summarise(RankTrace(rank, program(0, extra=int(keeps)), {}), known)
            here = frozenset([loss])
            yield replace(made, kept=here if keeps else frozenset(), dropped=frozenset() if keeps else here)

    made = Grid(mesh, tracer)
    made.fill()
    assert made.needed == {loss} and len(made.classes()) == 1
    assert [rank for rank in set(traced) if traced.count(rank) > 1] == [0]


def test_halves_of_a_class_are_traced_like_classes() -> None:
    made, _ = grid({"dp": 64, "tp": 2}, lambda dp, tp: program(dp * tp))
    assert [c.forms for c in made.classes()] == [(Affine(0),), (Affine.of(0, {"dp": 1}),)]
    assert all(len(c.traced) == 5 for c in made.classes())


def test_the_corners_of_every_class_are_traced() -> None:
    made, traced = grid({"dp": 64, "tp": 8}, lambda dp, tp: program(dp + tp, extra=int(dp == 63)))
    whole, last = made.classes()
    assert {tuple(c.box.values()) for c in (whole, last)} == {((0, 63), (0, 8)), ((63, 64), (0, 8))}
    assert {0, 7, 62 * 8, 62 * 8 + 7} <= set(whole.traced) and set(last.traced) == set(range(504, 512))
    assert len(traced) == len(set(traced)) == 20


def test_one_rank_that_differs_in_a_corner_cuts_the_whole_mesh() -> None:
    made, _ = grid({"dp": 32, "tp": 4}, lambda dp, tp: program(dp, extra=int(dp == 31 and tp == 3)))
    boxes = [tuple(c.box.values()) for c in made.classes()]
    assert boxes == [((0, 31), (0, 3)), ((0, 31), (3, 4)), ((31, 32), (0, 3)), ((31, 32), (3, 4))]


@pytest.mark.parametrize("mesh", [{"dp": 64, "tp": 16}, {"rep": 16, "dp": 64, "tp": 16}])
def test_products_of_coordinates_show_where_few_ranks_are_traced(mesh: dict[str, int]) -> None:
    right, traced = grid(mesh, lambda dp, tp, rep=1: program(7 * rep + 3 * dp - tp + 1), most=1)
    (only,) = right.classes()
    assert len(traced) == 2 ** len(mesh)
    assert only.forms[0].terms == (("dp", 3), *([("rep", 7)] if "rep" in mesh else []), ("tp", -1))
    for of in (
        lambda dp, tp, rep=1: rep * dp * tp,
        lambda dp, tp, rep=1: dp * tp,
        lambda dp, tp, rep=1: dp * dp,
    ):
        wrong, _ = grid(mesh, lambda **at: program(of(**at)), most=1)  # noqa: B023 - called before the next one
        with pytest.raises(FitError, match=r"but .* gives"):
            wrong.classes()


def test_a_stage_is_not_traced_where_another_one_differs() -> None:
    """The last shard of an embedding is short: all stages are cut there, and one is traced on both sides."""
    made, traced = grid(
        {"pp": 16, "dp": 64, "tp": 8},
        lambda pp, dp, tp: program(100 * pp + 10 * dp + tp, extra=2 * pp + int(pp == 0 and dp == 63)),
        most=11,
    )
    assert len(made.boxes()) == 17 and len(traced) == 15 * 6 + 9
    classes = made.classes()
    assert [tuple(c.box.values()) for c in classes] == [
        ((pp, pp + 1), dp, (0, 8)) for pp in range(16) for dp in ((0, 63), (63, 64))
    ]
    assert all(c.forms[0].evaluate({"pp": 7, "dp": 63, "tp": 5}) == 1335 for c in classes[14:16])
    assert classes[14].traced == classes[15].traced and len(classes[14].traced) == 6


def test_of_a_stage_that_is_like_another_one_two_ranks_are_traced() -> None:
    """The first stage is cut, so the second is the first of those that are alike to be traced whole."""
    made, traced = grid(
        {"pp": 16, "dp": 64, "tp": 8},
        lambda pp, dp, tp: stage(pp, 100 * pp + 10 * dp + tp, extra=int(pp == 0) + int(pp == 0 and dp == 63)),
        most=8,
    )
    assert len(made.boxes()) == 17 and len(traced) == len(set(traced))
    of = {pp: [r for r in traced if r // 512 == pp] for pp in range(16)}
    assert {pp: len(of[pp]) for pp in range(1, 16)} == {1: 4, 15: 4} | dict.fromkeys(range(2, 15), 2)
    classes = made.classes()
    assert all(c.forms[0].evaluate({"pp": 7, "dp": 63, "tp": 5}) == 1335 for c in classes[14:16])
    assert classes[14].traced == (7 * 512, 8 * 512 - 1), "what is lent is not called traced"
    lent = [s.rank for s in made.samples() if s.rank not in traced]
    assert lent == [r + 512 * pp for pp in range(2, 16) for r in (1, 8)]


def test_ranks_that_are_surely_traced_are_traced_together() -> None:
    """One after the other, each left all processes but one idle for as long as a trace takes."""
    mesh, batches = {"pp": 16, "dp": 64, "tp": 8}, list[list[int]]()

    def tracer(ranks: Iterable[int], known: Container[str], _needed: object) -> Iterator[Sample]:
        batches.append(list(ranks))
        for rank in batches[-1]:
            pp, dp, tp = Mesh(mesh).coordinates(rank).values()
            made = stage(pp, 10 * dp + tp, extra=int(pp == 0) + int(pp == 0 and dp == 63))
            yield summarise(RankTrace(rank, made, {}), known)

    Grid(Mesh(mesh), tracer, 8).fill()
    assert batches[0][:2] == [0, 8191], "the first rank is not alone"
    below, above = 62 * 8 + 7, 63 * 8 + 1
    assert any({below, above} <= set(batch) for batch in batches), "both sides of the short shard"


@pytest.mark.parametrize("differs", [{"value": 1}, {"extra": 1}])
def test_a_stage_that_is_not_what_another_one_says_is_traced_whole(differs: dict[str, int]) -> None:
    """The far corner of the fifth stage shows it."""

    def of(pp: int, dp: int, tp: int) -> RankProgram:
        other = differs if pp == 5 and tp == 7 else {}
        return stage(pp, 10 * dp + tp + other.get("value", 0), other.get("extra", 0))

    made, traced = grid({"pp": 8, "dp": 64, "tp": 8}, of, most=8)
    assert len([r for r in traced if r // 512 == 4]) == 2
    assert len([r for r in traced if r // 512 == 5]) >= 4
    if "extra" in differs:
        assert len(made.boxes()) == 9 and made.classes()
    else:
        with pytest.raises(FitError, match=r"but .* gives"):
            made.classes()


def test_the_boundary_of_a_class_is_found_by_bisection() -> None:
    made, traced = grid({"dp": 64, "tp": 2}, lambda dp, tp: program(dp, extra=int(dp >= 41)))
    assert [c.box for c in made.classes()] == [
        {"dp": (0, 41), "tp": (0, 2)},
        {"dp": (41, 64), "tp": (0, 2)},
    ]
    assert len(traced) < 24


def test_a_misfit_on_a_checked_rank_is_refused() -> None:
    made, _ = grid({"dp": 64}, lambda dp: program(dp * dp))
    with pytest.raises(FitError, match=r"scalar 0 is 1024 at dp=32, but dp gives 32"):
        made.classes()


def test_a_misfit_splits_a_completely_traced_class() -> None:
    made, _ = grid({"tp": 4}, lambda tp: program([0, 5, 6, 7][tp]))
    assert [(c.box, c.forms) for c in made.classes()] == [
        ({"tp": (0, 2)}, (Affine.of(0, {"tp": 5}),)),
        ({"tp": (2, 4)}, (Affine.of(4, {"tp": 1}),)),
    ]


def test_axes_of_one_rank_are_not_halved() -> None:
    made, _ = grid({"pp": 1, "tp": 4, "dp": 1}, lambda tp, **_: program([0, 5, 6, 7][tp]))
    assert [c.box for c in made.classes()] == [
        {"pp": (0, 1), "tp": (0, 2), "dp": (0, 1)},
        {"pp": (0, 1), "tp": (2, 4), "dp": (0, 1)},
    ]
