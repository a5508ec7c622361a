"""The mesh, and graphs: every rank once, long axes cut, names escaped, edges down."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from checker.report.findings import Findings
from checker.report.pictures import MOST, PANELS, Node, cut, graph_svg, mesh_svg, middle, positions


def drawn(svg: str) -> list[str]:
    return re.findall(r'class="n">(\d+)<', svg)


def test_every_rank_of_a_small_mesh_is_drawn(right: Findings) -> None:
    svg = mesh_svg(right.plan)
    ElementTree.fromstring(svg)
    assert drawn(svg) == ["0", "1", "2", "3"] and svg.count("fibre") == 2


def test_one_rank_is_a_mesh_too(right: Findings) -> None:
    alone = replace(right.plan.classes["c0"], box=())
    assert drawn(mesh_svg(replace(right.plan, mesh=(), classes={"c0": alone}))) == ["0"]


def test_long_axes_show_their_ends_and_where_classes_meet(right: Findings) -> None:
    assert positions(MOST, []) == list(range(MOST))
    assert positions(64, [0, 63, 64]) == [0, 1, 2, 3, 4, None, 62, 63]
    assert positions(64, [0, 31, 64]) == [0, 1, 2, 3, 4, None, 30, 31, None, 62, 63]
    whole = right.plan.classes["c0"]
    classes = {"c0": replace(whole, box=((0, 63), (0, 8))), "c1": replace(whole, box=((63, 64), (0, 8)))}
    svg = mesh_svg(replace(right.plan, mesh=(("fsdp", 64), ("tp", 8)), classes=classes))
    assert drawn(svg)[-1] == "511" and svg.count('class="k1"') == 8


def test_more_axes_are_panels_up_to_a_number_that_is_said(right: Findings) -> None:
    classes = {"c0": replace(right.plan.classes["c0"], box=((0, 10), (0, 2), (0, 2)))}
    svg = mesh_svg(replace(right.plan, mesh=(("rep", 10), ("dp", 2), ("tp", 2)), classes=classes))
    assert PANELS == 8 and len(drawn(svg)) == 4 * PANELS and "2 more panels of this kind are not drawn" in svg


def test_a_graph_runs_down_and_escapes_names() -> None:
    nodes = {n: Node(f"{n} <script>", "f32[]", "open") for n in ("out", "left", "right", "top")}
    edges = [("left", "out"), ("right", "out"), ("top", "left"), ("top", "right")]
    svg = graph_svg("how & why", nodes, edges, "out")
    root = ElementTree.fromstring(svg)
    tops = [float(r.attrib["y"]) for r in root.iter() if r.tag == "rect"]
    assert tops[0] == max(tops) and tops[3] == min(tops) and tops[1] == tops[2]
    assert "<script>" not in svg and len([p for p in root.iter() if p.tag == "path"]) == 4


def test_long_names_are_cut() -> None:
    assert middle("f32[4096,8192] train.py:1") == "f32[4096,8192] train.py:1"
    long = middle("bf16[1,8192,128,64] torchtitan/models/common/attention.py:830")
    assert len(long) == 31 and long.startswith("bf16[1,8192") and long.endswith("ention.py:830"), (
        "the line stays"
    )
    assert cut("a" * 27) == "a" * 27 and cut("a" * 28) == "a" * 26 + "…"


def test_runs_of_a_rank_are_no_ranks(right: Findings) -> None:
    """A time axis says how often a rank runs; the picture is of ranks."""
    whole = right.plan.classes["c0"]
    classes = {"c0": replace(whole, box=((0, 8), *whole.box))}
    plan = replace(right.plan, mesh=(("mb", 8), *right.plan.mesh), time=("mb",), classes=classes)
    assert drawn(mesh_svg(plan)) == ["0", "1", "2", "3"]
