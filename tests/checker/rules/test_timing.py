"""Time axes (obligation 20): what a rank holds is one tensor for all its runs."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.reading.plan import read_plan
from checker.rules.acyclic import check_acyclic
from checker.rules.timing import check_time

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import Bundle, at, dump, forged, op, piece, refuses, relation, staged, z

RUN = {"mb": 2, "z0": 1}


def test_a_relation_that_mentions_time() -> None:
    """Each run would hold rows of its own: provable, and no rank has so many tensors."""
    bundle = staged()
    bundle.plan["inputs"][0]["pieces"] = [piece("c0", [2], [z(0)], [RUN])]
    with refuses(20, "a relation mentions time", "x ~ x"):
        forged(bundle).examine()


def test_an_output_that_mentions_time() -> None:
    bundle = staged()
    last = bundle.plan["classes"][1]["program"]
    last["ops"].pop()
    last["outputs"] = [["y", "%0"]]
    bundle.plan["outputs"][0]["pieces"] = [piece("c1", [2], [z(0)], [RUN])]
    with refuses(20, "a relation mentions time", "y ~ y"):
        forged(bundle).examine()


def test_a_partial_value_over_time() -> None:
    bundle = staged()
    bundle.plan["inputs"][0]["reduce"] = ["add", ["mb"]]
    with refuses(20, "a relation mentions time"):
        forged(bundle).examine()


@pytest.mark.parametrize(
    ("name", "attrs", "shape"),
    [
        ("reduce_scatter", {"kind": "add", "dim": 0}, "f32[1]"),
        ("all_to_all", {"split_dim": 0, "concat_dim": 0}, "f32[2]"),
    ],
)
def test_only_sums_and_stacks_join_runs(name: str, attrs: dict[str, Any], shape: str) -> None:
    """A state that is cut over time, one piece per run, and gathered where it is used."""
    bundle = staged()
    ops = bundle.plan["classes"][1]["program"]["ops"]
    ops.append(op("%2", name, ["%0"], shape, group="runs", seq=7, **attrs))
    with refuses(20, f"{name} joins runs", "rendezvous 7"):
        forged(bundle).examine()


def test_groups_are_fibres() -> None:
    bundle = staged()
    bundle.plan["groups"]["odd"] = {"axes": [], "ranks": [[1, 0]]}
    with refuses(20, "a group is the fibres of its axes", "group odd"):
        forged(bundle).examine()


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"axes": ["mb", "pp"]}, "no time axis 'pp'"),
        ({"axes": ["pp"]}, "no time axis 'pp'"),
        ({"axes": []}, "bad axes"),
        ({"axes": ["mb", "mb"]}, "bad axes"),
        ({"axes": ["mb"], "ranks": [[0, 1]]}, "bad axes"),
        ({"axes": ["mb", "pp"], "ranks": [[0, 1]]}, "bad axes"),
    ],
)
def test_groups_over_time_have_no_ranks(group: Any, reason: str) -> None:
    bundle = staged()
    bundle.plan["groups"]["g"] = group
    with pytest.raises(Malformed, match=reason):
        bundle.examine()


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        ([], "an optional member is empty"),
        ([["pp", 2]], "mesh: bad axes"),
        ([["mb", 0]], "mesh: bad axes"),
        ([["z0", 2]], "the name z0 is reserved"),
        ([["mb", 1 << 20]], "mesh: bad axes"),
    ],
)
def test_bad_time_axes(time: Any, reason: str) -> None:
    bundle = staged()
    bundle.plan["time"] = time
    with pytest.raises(Malformed, match=reason):
        bundle.examine()


def test_version_1_has_no_time() -> None:
    bundle = staged()
    bundle.plan["version"] = 1
    with pytest.raises(Malformed, match="version 1 has no time axes"):
        bundle.examine()


def two_programs() -> Bundle:
    """The first stage's run 0 and run 1 are classes of their own, alike."""
    bundle = staged()
    first = bundle.plan["classes"][0]
    other = copy.deepcopy(first) | {"name": "c2", "box": {"mb": [1, 2], "pp": [0, 1]}}
    first["box"] = {"mb": [0, 1], "pp": [0, 1]}
    bundle.plan["classes"].append(other)
    bundle.plan["inputs"][0]["pieces"].append(piece("c2", [4], [z(0)], [z(0)]))
    return bundle


def test_programs_of_one_rank_agree_on_its_tensors() -> None:
    check_time(read_plan(dump(two_programs().plan)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("inputs.0.pieces.1", piece("c2", [2], [z(0)], [z(0)])),
        ("inputs.0.pieces.1", piece("c2", [2], [z(0)], [{"z0": 1, "": 2}])),
        ("inputs.0.pieces", [piece("c0", [4], [z(0)], [z(0)])]),
        ("classes.2.program.inputs.0", ["x", "f32[5]"]),
    ],
    ids=["other rows", "other elements", "none", "another type"],
)
def test_programs_of_one_rank_that_hold_different_tensors(path: str, value: Any) -> None:
    bundle = two_programs()
    at(path, value)(bundle.plan)
    with refuses(20, "two programs of one rank have different tensors", "x of classes c0 and c2"):
        check_time(read_plan(dump(bundle.plan)))


def test_what_is_said_of_another_tensor_is_no_excuse() -> None:
    """Rows of x differ between c0 and c2; of v, on another rank, a relation says both."""
    bundle = two_programs()
    halves = [{"z0": 1}, {"z0": 1, "": 2}]
    bundle.plan["inputs"][0]["pieces"] = [
        piece(c, [2], [z(0)], [form]) for c, form in zip(("c0", "c2"), halves, strict=True)
    ]
    bundle.plan["classes"][1]["program"]["inputs"] = [["v", "f32[4]"]]
    bundle.plan["inputs"].append(relation("x", "v", *(piece("c1", [2], [z(0)], [form]) for form in halves)))
    with refuses(20, "two programs of one rank have different tensors", "x of classes c0 and c2"):
        check_time(read_plan(dump(bundle.plan)))


def test_outputs_of_one_rank_are_one_tensor_too() -> None:
    bundle = two_programs()
    for number in (0, 2):
        bundle.plan["classes"][number]["program"]["outputs"] = [["v", "%1" if number else "x"]]
    with refuses(20, "two programs of one rank have different tensors", "v of classes c0 and c2"):
        check_time(read_plan(dump(bundle.plan)))


def test_a_circle_through_time() -> None:
    """Run 0 sums what rests on run 1's sum of what rests on run 0's."""
    bundle = two_programs()

    def summed(result: str, value: str, seq: int) -> Any:
        return op(result, "all_reduce", [value], "f32[2]", group="runs", kind="add", seq=seq)

    for number, (one, two) in ((0, (20, 21)), (2, (21, 20))):
        bundle.plan["classes"][number]["program"]["ops"] += [
            summed("%8", "%1", one),
            summed("%9", "%8", two),
        ]
    with refuses(14, "a value rests on itself"):
        check_acyclic(read_plan(dump(bundle.plan)))
