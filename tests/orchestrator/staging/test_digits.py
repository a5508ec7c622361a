"""Facts about every k-th position are used by digits: interleaved pairs, as rotary ones are, are proved."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine, divided
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from certificates.proof.stages import BoundIndex
from orchestrator.staging.digits import located, splitting
from smtlib_emit.model import Model

from ..plans import unproved
from ..relating.kit import formulas, last
from .test_layout import check, stages

ROWS, INNER, PLAIN, PAIRS, COLUMNS = 6, 8, 4, 3, 5


def gradient(b: ProgramBuilder, order: tuple[int, int], **given: Value) -> Value:
    """The gradient of weights whose results are plain first, then pairs that were turned, each a sum."""
    h = given["h"]
    pairs = [b.reshape(h @ given[f"w{i}"], (ROWS, PAIRS, 1)) for i in order]
    turned = b.reshape(b.concatenate(pairs, 2), (ROWS, 2 * PAIRS))
    return b.concatenate([h @ given["w"], turned], 1).transpose(1, 0) @ given["x"]


def plan(order: tuple[int, int] = (0, 1)) -> Plan:
    """What is summed is cut over ``tp``, and reduced at last; here with the pairs in an ``order``."""
    cut, widths = {"tp": Shard(0)}, {"w": PLAIN, "w0": PAIRS, "w1": PAIRS}
    return formulas(
        {"tp": 2},
        lambda b, **given: gradient(b, (0, 1), **given),
        lambda b, **given: b.all_reduce(gradient(b, order, **given), "tp"),
        {
            "h": (f"f32[{ROWS},{INNER}]", f"f32[{ROWS},{INNER // 2}]", {"tp": Shard(1)}),
            **{n: (f"f32[{INNER},{k}]", f"f32[{INNER // 2},{k}]", cut) for n, k in widths.items()},
            "x": (f"f32[{ROWS},{COLUMNS}]", f"f32[{ROWS},{COLUMNS}]", {"tp": Replicate()}),
        },
        claimed=True,
    )


def test_a_sum_whose_parts_lie_interleaved_is_proved() -> None:
    """Without digits the facts about even and odd rows say nothing of a row."""
    assert unproved(plan()) == []


def test_rows_in_another_order_are_not_proved() -> None:
    assert unproved(plan((1, 0))) != []


def test_what_digits_say_is_true() -> None:
    _, found = stages(plan())
    borrowed = [p for s in found for p in s.premises if isinstance(p, BoundIndex)]
    assert any(Affine(-PLAIN) + Affine.symbol("z0") in p.at for p in borrowed), borrowed
    assert check(plan()) > 10


@pytest.mark.parametrize(
    ("step", "count", "known"), [(2, PAIRS, True), (2, PAIRS + 1, False), (PAIRS, 2, False), (4, 1, False)]
)
def test_digits_are_those_of_a_reshape(step: int, count: int, known: bool) -> None:
    """Six rows are three pairs: of eight positions, or of two threes, no reshape says anything."""
    made = plan()
    model = Model(made)
    found = splitting(model, step, count)
    assert (found is not None) == known, last(made)
    if found is not None:
        assert found.ref.startswith("s:") and found.part.arg_sizes[-1] == step


X, Q, R = (Affine.symbol(s) for s in "xqr")
RANGES = {"x": (0, 4), "q": (0, 3), "r": (0, 8)}


def test_a_form_is_divided_where_the_ranges_say_so() -> None:
    assert divided(X.scale(8) + R, 8, RANGES) == (X, R)
    assert divided(X.scale(8) + R + 8, 8, RANGES) == (X + 1, R)
    assert divided(X.scale(8) + R + 1, 8, RANGES) is None
    assert divided(X.scale(8) + Affine.symbol("unknown"), 8, RANGES) is None


def test_digits_of_a_position_lie_where_its_rest_lies() -> None:
    """Of ``q`` nothing is said where the position may run over into it."""
    assert located(X.scale(8) + 2, (Q, R), (4, 8), RANGES, RANGES) == {"q": (0, 4), "r": (2, 3)}
    assert located(X.scale(8) + 2, (Q, R), (4, 8), RANGES, RANGES | {"x": (1, 2)})["q"] == (1, 2)
    assert located(X + R, (Q, R), (4, 8), RANGES, RANGES) == {}
