"""A schedule as a picture: lanes down, times (or, if it is not safe, event numbers) to the right."""

from __future__ import annotations

from html import escape

from ..language.plan import Plan
from ..scheduling.lane import told
from ..scheduling.safety import Safety
from .pictures import COLOURS, cut

LANES, COLUMNS, CELL, TALL, LEFT = 16, 96, 13, 20, 96


def timetable_svg(plan: Plan, safe: Safety) -> str:
    """Squares are segments, coloured by their names, strokes are messages and collectives; the events that
    show that a schedule is not safe are outlined."""
    lanes = plan.schedule.lanes if plan.schedule else ()
    marked = set(safe.marked)
    named = [lane for lane in lanes if any(n == lane.name for n, _ in marked)]
    shown = [lane for lane in lanes if lane in [*named, *(n for n in lanes if n not in named)][:LANES]]
    times = safe.when.times if safe.when else {n.name: tuple(range(len(n.events))) for n in lanes}
    column = {t: i for i, t in enumerate(sorted({t for lane in shown for t in times[lane.name]}))}
    first = (
        max(min((column.get(times[n][i], 0) for n, i in marked), default=0) - COLUMNS // 4, 0)
        if marked
        else 0
    )
    names = dict.fromkeys(
        key[1] for lane in lanes for e in lane.events for key, _ in e.items if e.kind == "run"
    )
    colour = {name: i % COLOURS for i, name in enumerate(names)}
    width = LEFT + CELL * min(max(len(column) - first, 1), COLUMNS)
    title = f"Schedule of {len(lanes)} lanes, {'SAFE' if safe.safe else 'UNSAFE'}"
    out = [
        f'<svg class="timetable" viewBox="0 0 {width} {TALL * len(shown) + 4}" role="img" '
        f'style="max-width:{width}px" aria-label="{title}"><title>{title}</title>'
    ]
    for r, lane in enumerate(shown):
        out.append(f'<text x="0" y="{r * TALL + 15}" class="s">{escape(cut(lane.name, 14))}</text>')
        for i, event in enumerate(lane.events):
            x = column[times[lane.name][i]] - first
            if not 0 <= x < COLUMNS:
                continue
            run = event.kind == "run"
            css = f"k{colour[event.items[0].key[1]]}" if run else "comm"
            css += " marked" if (lane.name, i) in marked else ""
            wide, shift = (CELL - 1, 0) if run else (3, CELL // 2 - 2)
            out.append(
                f'<rect class="{css}" x="{LEFT + CELL * x + shift}" y="{r * TALL + 3}" width="{wide}" '
                f'height="{TALL - 5}"><title>{escape(f"{lane.name} {i}: {told(event)}")}</title></rect>'
            )
    hidden = len(lanes) - len(shown), first + max(len(column) - first - COLUMNS, 0)
    said = [f"{n} {what}" for n, what in zip(hidden, ("lanes", "columns"), strict=True) if n]
    note = f"<p class=note>Not drawn: {' and '.join(said)}.</p>" if said else ""
    return "".join([*out, "</svg>"]) + note
