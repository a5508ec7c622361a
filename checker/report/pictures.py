"""Pictures as inline SVG: the mesh with its groups, and the graph around a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

from ..language.plan import Plan

MOST = 16
"""Positions of one axis that are drawn; of a longer one the first and the last."""
PANELS = 8
CELL, GAP, PANEL = 30, 6, 34
COLOURS = 6


def positions(size: int, cuts: Sequence[int]) -> list[int | None]:
    """The coordinates that are drawn, None for a gap: all of a short axis, else ends and "
    "where classes meet."""
    if size <= MOST:
        return list(range(size))
    near = {0, 1, 2, 3, 4, size - 2, size - 1}
    near |= {at + d for at in cuts[:3] for d in (-1, 0) if 0 <= at + d < size}
    out: list[int | None] = []
    for at in sorted(near):
        if out and out[-1] is not None and at - out[-1] > 1:
            out.append(None)
        out.append(at)
    return out


def mesh_svg(plan: Plan) -> str:
    """One square per rank, coloured by its class; the last axis runs to the right, the one before it down.

    Further axes are panels. One fibre of each of the last two axes is outlined. Classes are those of the
    first run.
    """
    axes = [(a, n) for a, n in plan.mesh if a not in plan.time] or [("rank", 1)]
    cuts = {a: sorted({e for c in plan.classes for e in plan.box(c)[a]}) for a, _ in plan.mesh}
    across, down = axes[-1], axes[-2] if len(axes) > 1 else ("", 1)
    columns, rows = (positions(n, cuts.get(a, [])) for a, n in (across, down))
    outer = axes[:-2]
    panels = list(product(*([(a, i) for i in range(n)] for a, n in outer)))
    width, height = len(columns) * (CELL + GAP) + PANEL + 30, len(rows) * (CELL + GAP) + PANEL + 26
    shown = panels[:PANELS]
    per_row = max(1, min(len(shown), 720 // width or 1))
    lines = -(-len(shown) // per_row)
    title = f"Device mesh {' by '.join(f'{a} {n}' for a, n in axes)}"
    out = [
        f'<svg class="mesh" viewBox="0 0 {per_row * width} {lines * height}" role="img" '
        f'style="max-width:{max(per_row * width, 260)}px" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
    ]
    classes = list(plan.classes)
    for number, place in enumerate(shown):
        x0, y0 = number % per_row * width, number // per_row * height
        out.append(f'<g transform="translate({x0} {y0})">')
        label = " ".join(f"{a} {i}" for a, i in place)
        out.append(f'<text x="{PANEL}" y="12" class="s">{escape(f"{label}   {across[0]} →".strip())}</text>')
        if down[0]:
            out.append(f'<text x="0" y="{PANEL + 2}" class="s">{escape(down[0][:4])}</text>')
            out.append(f'<text x="8" y="{PANEL + 18}" class="s">↓</text>')
        for (r, i), (c, j) in product(enumerate(rows), enumerate(columns)):
            x, y = PANEL + c * (CELL + GAP), PANEL - 10 + r * (CELL + GAP)
            if i is None or j is None:
                out.append(f'<text x="{x + 10}" y="{y + 20}" class="s">…</text>')
                continue
            at = (
                dict.fromkeys(plan.time, 0) | dict(place) | ({down[0]: i} if down[0] else {}) | {across[0]: j}
            )
            rank = 0
            for axis, size in axes:
                rank = rank * size + at[axis]
            cls = next(
                (
                    n
                    for n, c in enumerate(classes)
                    if all(lo <= at[a] < hi for a, (lo, hi) in plan.box(c).items() if a in at)
                ),
                0,
            )
            out.append(
                f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="4" class="k{cls % COLOURS}"/>'
            )
            out.append(f'<text x="{x + CELL / 2:g}" y="{y + 19}" class="n">{rank}</text>')
        if number == 0:
            out.append(_outline("a", PANEL - 3, PANEL - 13, len(columns) * (CELL + GAP), CELL + 6))
            if down[0]:
                out.append(_outline("b", PANEL - 3, PANEL - 13, CELL + 6, len(rows) * (CELL + GAP)))
        out.append("</g>")
    return "".join([*out, "</svg>"]) + (
        f"<p class=note>{len(panels) - PANELS} more panels of this kind are not drawn.</p>"
        if len(panels) > PANELS
        else ""
    )


def _outline(kind: str, x: int, y: int, width: int, height: int) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="fibre {kind}"/>'


@dataclass(frozen=True)
class Node:
    """A tensor in a graph: two lines of words, and how it stands: `wrong`, `proved`, or neither."""

    first: str
    second: str
    kind: str


WIDE, TALL, APART = 216, 44, 30


def graph_svg(title: str, nodes: Mapping[str, Node], edges: Sequence[tuple[str, str]], last: str) -> str:
    """Operands above results, the tensor `last` at the bottom; every edge goes down."""
    level = dict.fromkeys(nodes, 0)
    for _ in nodes:  # as far below as the longest way from `last` upwards
        for operand, result in edges:
            level[operand] = max(level[operand], level[result] + 1)
    depth = max(level.values()) + 1
    rows: list[list[str]] = [[n for n in nodes if level[n] == depth - 1 - r] for r in range(depth)]
    width = max(map(len, rows)) * (WIDE + 14) + 4
    place: dict[str, tuple[float, float]] = {}
    for r, row in enumerate(rows):
        left = (width - len(row) * (WIDE + 14) + 14) / 2
        place |= {n: (left + i * (WIDE + 14), r * (TALL + APART) + 3) for i, n in enumerate(row)}
    height = depth * (TALL + APART) - APART + 6
    out = [
        f'<svg class="graph" viewBox="0 0 {width} {height}" role="img" style="max-width:{width}px" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
    ]
    for operand, result in edges:
        (x, y), (u, v) = place[operand], place[result]
        a, b = x + WIDE / 2, u + WIDE / 2
        out.append(
            f'<path class="edge" d="M{a:g} {y + TALL:g} C{a:g} {v - 8:g} {b:g} '
            f'{y + TALL + 8:g} {b:g} {v:g}"/>'
        )
    for name, node in nodes.items():
        x, y = place[name]
        mark = " last" if name == last else ""
        out.append(
            f'<g class="node {node.kind}{mark}"><rect x="{x:g}" y="{y:g}" width="{WIDE}" '
            f'height="{TALL}" rx="6"/>'
            f'<text x="{x + 10:g}" y="{y + 18:g}">{escape(cut(node.first))}</text>'
            f'<text x="{x + 10:g}" y="{y + 34:g}" class="s">{escape(middle(node.second))}</text></g>'
        )
    return "".join([*out, "</svg>"])


def cut(text: str, most: int = 27) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def middle(text: str, most: int = 31) -> str:
    """Without its middle if it is long: a type stands before it, the number of a line after it."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"
