"""`report.html`: one file for people, without scripts or anything from elsewhere; every name is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from ..language.plan import Plan
from ..reading.strict import read_json
from ..refuting.inline import inline
from ..rules.laws import LAWS
from ..rules.relations import relation_facts
from ..rules.roles import states
from .about import FIELDS
from .around import both_sides
from .claims import claim
from .domains import Domains
from .findings import Findings
from .flow import FEW, collectives, parts
from .mathematics import written
from .pictures import COLOURS, mesh_svg
from .script import script
from .style import STYLE
from .text import HOLDS, diagnoses, plain
from .timetable import timetable_svg
from .verdict import (
    CONDITIONS,
    assumed,
    folded,
    laws_used,
    named,
    normalised_line,
    outside,
    provenance,
    role_lines,
    schedule_line,
    side,
    solver_line,
    unclaimed,
)

MOST, LINES = 100, 40
"""Obligations that are written out, and formulas of one."""
ROWS = 80
"""Outputs that have a row of their own; of more, those that differ in numbers only share one."""
REASONS = 8
"""Reasons for which the step is no invariant that are written out."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
UNTRACED = ("interpolated_ranks", "traced_ranks")


def page(found: Findings) -> str:
    """The whole file."""
    sections = [
        ("difference", "Where it differs", _differences(found)),
        ("claim", "What this says", _claim(found)),
        ("assumed", "What was assumed", _assumed(found)),
        ("uncovered", "What was not covered", _uncovered(found)),
        ("again", "Who can check this again, and how", _again(found)),
        ("outputs", "The outputs", _outputs(found)),
        ("mesh", "The mesh and its groups", _mesh(found.plan)),
        ("schedule", "The schedule", _schedule(found)),
        ("flow", "The flow of the step", _flow(found)),
        ("rests", "What it rests on", _rests(found)),
        ("said", "Said by the maker, not checked", _said(found)),
        ("obligations", "Every obligation", _obligations(found)),
    ]
    there = [(key, title, "".join(body)) for key, title, body in sections]
    there = [(key, title, body) for key, title, body in there if body]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in there)
    body = "".join(
        f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{title}</h2>{inner}</section>\n'
        for key, title, inner in there
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{found.word}: {esc(found.plan.name)} · "
        f"TrainVerify</title><style>{STYLE}</style></head>\n<body>"
        f"<header>{''.join(_top(found))}<nav "
        f'aria-label="Contents">{links}</nav></header>\n<main>{body}</main>\n'
        f"<footer><p>Written by the checker of TrainVerify from the files beside it, and "
        f"compared with them byte "
        f"for byte by <code>tv-check</code>. Plan digest <code>{found.plan.digest}</code>.</p></footer>"
        "</body></html>\n"
    )


def esc(text: object) -> str:
    """Text for HTML: printable ASCII, escaped."""
    return html.escape(plain(str(text)))


def listed(items: Iterable[str], css: str = "") -> str:
    said = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul{css}>{said}</ul>" if said else ""


# The parts --------------------------------------------------------------------------------------------------


def _top(found: Findings) -> Iterator[str]:
    plan, outputs = found.plan, found.outputs
    proved = sum(o.verdict == "PROVED" for o in outputs)
    mesh = " × ".join(f"{esc(a)} {n}" for a, n in plan.mesh if a not in plan.time) or "one rank"
    yield '<p class="brand">TrainVerify certificate</p>'
    yield f'<span class="badge {found.word}">{found.word}</span>\n<h1>{esc(found.sentence)}</h1>'
    yield (
        '<p class="lead">This page says what the bundle beside it claims. The claim counts once '
        "<code>tv-check</code> has confirmed it.</p>"
    )
    yield '<dl class="facts">'
    for what, value in (
        ("Plan", esc(plan.name)),
        ("Mesh", mesh),
        ("Ranks", f"{found.ranks:,}"),
        *((f"Runs of each rank, by {esc(a)}", f"{n:,}") for a, n in plan.mesh if a in plan.time),
        ("Outputs proved", f"{proved:,} of {len(outputs):,}"),
        ("Obligations", f"{len(found.examined.files):,}"),
        ("Proof stages", f"{found.examined.steps:,}"),
    ):
        yield f"<div><dt>{what}</dt><dd>{value}</dd></div>"
    yield f'<div class="wide"><dt>SHA-256 of the plan</dt><dd>{plan.digest}</dd></div></dl>'


def _claim(found: Findings) -> Iterator[str]:
    yield (
        "<p>A training step was written twice: as a program for one device (the "
        "<em>specification</em>), and as "
        f"the programs of {found.ranks:,} ranks that work together (the <em>plan</em>). A plan can be wrong "
        "without failing: training runs on and the model is not the one that was meant.</p>"
        "<p>For <em>every</em> real-valued input that satisfies the input relation, each "
        "output called PROVED "
        "stands in the stated relation to the specification’s output. This was not sampled "
        "or tested: it is a "
        "mathematical proof about the true sizes of the model.</p>"
    )
    if found.word != "PROVED":
        yield "<p><strong>An output that is not called PROVED has no certificate.</strong></p>"
    if found.invariant:
        yield "<h3>One step only</h3><p>The step is not shown to be an invariant of the run, because</p>"
        reasons = folded(list(found.invariant))
        yield listed(map(esc, reasons[:REASONS]))
        yield f"<p>and {len(reasons) - REASONS:,} more of this kind.</p>" if len(reasons) > REASONS else ""
    else:
        yield f"<h3>Any number of steps</h3><p>{esc(HOLDS[:1].upper() + HOLDS[1:])}</p>"
        yield listed(esc(condition) for condition in CONDITIONS)


def _outputs(found: Findings) -> Iterator[str]:
    plan, rows = found.plan, dict[tuple[str, str, str], int]()
    pairs = list(zip(found.outputs, plan.outputs, strict=True))
    for output, relation in pairs:
        said = claim(plan, relation)
        if len(pairs) > ROWS and output.verdict == "PROVED":
            said = re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "#", said)
        key = output.verdict, said, output.reason
        rows[key] = rows.get(key, 0) + 1
    yield '<div class="scroll"><table class="stack"><thead><tr><th scope="col">Verdict</th><th '
    yield 'scope="col">Output of '
    yield 'the plan = of the specification</th><th scope="col">On the mesh</th></tr></thead><tbody>'
    for (verdict, said, reason), count in rows.items():
        left, _, right = said.partition("; ")
        more = f' <span class="note">({count} of this form)</span>' if count > 1 else ""
        note = f'<br><span class="note">{esc(reason)}</span>' if reason else ""
        yield f'<tr><td class="w {verdict}">{verdict}</td><th '
        yield f'scope="row"><code>{esc(left)}</code>{more}{note}</th>'
        yield f"<td>{esc(right)}</td></tr>"
    yield "</tbody></table></div>"


def _differences(found: Findings) -> Iterator[str]:
    for output, replay in sorted(found.refuted.items()):
        relation = found.plan.outputs[output]
        at = ", ".join(f"{s} = {v}" for s, v in sorted(replay.symbols.items()))
        yield "<p>On the input of <code>witness.json</code> the output "
        yield f"<code>{esc(relation.plan)}</code> has "
        yield f"other values than the claim <code>{esc(claim(found.plan, relation))}</code> wants"
        yield f", at {esc(at)}" if at else ""
        yield '. The checker evaluates both sides at true sizes, without a solver.</p><div class="two">'
        for where, ends in (("The plan computes", replay.plan), ("The claim wants", replay.spec)):
            yield f'<div class="number"><span>{where}</span><b>{esc(side(ends))}</b></div>'
        yield "</div>"
        left, right, how = both_sides(found, output)
        yield f"<h3>Around it in the plan</h3><p>Red is {esc(how)}. Green tensors are proved to be what the "
        yield "specification has; yellow ones only in their sum, maximum or minimum over ranks.</p>"
        yield f'<div class="scroll">{right}</div><h3>Around it in the specification</h3>'
        yield f'<div class="scroll">{left}</div>'
        for line in diagnoses(found):
            yield f'<p class="note">The maker says, unchecked: {esc(line)}</p>'
        yield from _script(found, output)


def _script(found: Findings, output: int) -> Iterator[str]:
    witness: dict[str, Any] = read_json(found.members["witness.json"], "witness")
    flat = inline(found.plan)
    fact = relation_facts(flat, flat.outputs[output], "outputs")[witness["piece"]]
    made = script(flat, fact, witness, dict(found.refuted[output].symbols))
    yield "<h3>See it for yourself</h3>"
    if made is None:
        yield "<p>At the true sizes of this plan a plain script would need too much memory. "
        yield "<code>tv-check</code> replays the witness block by block.</p>"
        return
    yield "<p>This script needs Python and numpy, nothing of TrainVerify. It prints both numbers, "
    yield "in floating "
    yield "point.</p><details><summary>The script</summary>"
    yield f'<pre id="script">{html.escape(made)}</pre></details>'


def _assumed(found: Findings) -> Iterator[str]:
    yield "<p>Beyond the solvers and the checker, the claim takes for granted:</p>"
    yield listed(
        [
            *(esc(note) for note in assumed(found.examined)),
            "the inputs of the ranks are the specification’s inputs, laid out as the input relation says",
            "ranks that were not traced run the program of their class" + esc(_untraced(found.plan)),
        ]
    )
    roles = role_lines(found.plan)
    if roles:
        yield f"<h3>Roles of the inputs</h3>{listed(map(esc, roles))}"


def _untraced(plan: Plan) -> str:
    said = [
        f"{key.replace('_', ' ')}: {named_value(plan.provenance[key])}"
        for key in UNTRACED
        if key in plan.provenance
    ]
    return f" (the plan says {'; '.join(said)})" if said else ""


def named_value(value: object) -> str:
    return named([str(v) for v in value]) if isinstance(value, list) else str(value)


def _uncovered(found: Findings) -> Iterator[str]:
    yield listed(esc(item) for item in outside(found.examined))
    notes = folded(unclaimed(found.examined))
    if notes:
        yield f"<h3>Not claimed</h3>{listed(map(esc, notes))}"
    domains = folded(Domains(found.plan).unshown())
    if domains:
        yield "<h3>Not shown to stay in their domain</h3><p>Where the condition fails, the claim "
        yield "says nothing:</p>"
        yield listed(map(esc, domains))


def _again(found: Findings) -> Iterator[str]:
    yield (
        "<p>Anybody with this folder, and without trusting whoever made it. The checker "
        "shares no code with the "
        "program that found the proof. It derives every step again, writes every obligation "
        "again, compares them "
        "byte for byte, and asks two SMT solvers. Install it from a source that you trust, then:</p>"
        "<pre class=wrap>tv-check BUNDLE --plan YOUR-OWN-COPY-OF-THE-PLAN --trusted-base</pre>"
        "<p>Exit code 0 and a last line that begins with <code>VALID</code> mean that "
        "everything here called PROVED "
        "is proved. A changed byte in this page is found too. The files of <code>obligations/</code> are "
        "plain SMT-LIB: any solver must answer <code>unsat</code> to each.</p>"
        f"<p>Make sure that the plan is yours: its SHA-256 is <code>{found.plan.digest}</code>.</p>"
    )


def _mesh(plan: Plan) -> Iterator[str]:
    yield mesh_svg(plan)
    yield "<h3>Rank classes</h3><p>Ranks of one colour run one program.</p><ul class=legend>"
    for i, name in enumerate(plan.classes):
        box = ", ".join(f"{a} {lo} to {hi - 1}" for a, (lo, hi) in plan.box(name).items()) or "the only rank"
        ops = len(plan.classes[name].program.ops)
        yield f'<li><span class="swatch k{i % COLOURS}"></span><code>{esc(name)}</code>: '
        yield f"{esc(box)}; {ops:,} ops</li>"
    yield "</ul>"
    used = collectives(plan)
    if not used:
        return
    yield '<h3>Process groups</h3><div class="scroll"><table class="fixed"><thead><tr><th '
    yield 'scope="col">Group</th><th scope="col">'
    yield 'Axes</th><th scope="col" class="n2">Groups × ranks</th><th scope="col">First group</th>'
    yield '<th scope="col">Collectives of a rank</th></tr></thead><tbody>'
    for name, counts in used.items():
        group = plan.groups[name]
        first = ", ".join(map(str, group.ranks[0][:8])) if group.ranks else "the runs of one rank"
        first += ", …" if group.size > 8 and group.ranks else ""
        many = len(group.ranks) or prod(n for a, n in plan.mesh if a not in plan.time)
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.items())) or "none"
        yield "<tr><th "
        yield f'scope="row"><code>{esc(name)}</code></th><td>{esc(" ".join(group.axes))}</td><td class="n2">'
        yield f"{many:,} × {group.size:,}</td><td>{first}</td><td>{kinds}</td></tr>"
    yield "</tbody></table></div>"


def _schedule(found: Findings) -> Iterator[str]:
    line = schedule_line(found.examined)
    if line:
        yield f"<p>{esc(line[:1].upper() + line[1:])}.</p>"
    if found.examined.safe is not None:
        yield timetable_svg(found.plan, found.examined.safe)


def _flow(found: Findings) -> Iterator[str]:
    yield "<p>The specification from its inputs to its outputs. Each part says how many stages of "
    yield "the proof tie the "
    yield "ranks’ tensors to it; the stages of a function are shown once and hold at every call.</p>"
    yield '<ol class="flow">'
    plan = found.plan
    counts = (len(states(plan)), "states"), (len(plan.given), "given anew"), (len(plan.constants), "constant")
    inputs = ", ".join(f"{n:,} {what}" for n, what in counts if n)
    yield f"<li><strong>Inputs</strong><p>{inputs}</p></li>"
    for part in parts(found.plan, found.examined.facts, found.proof):
        title = f"function {esc(part.function)}" if part.function else f"{part.ops:,} ops"
        times = (
            f"{part.calls:,} {'call' if part.calls == 1 else 'calls'} of {part.ops:,} ops"
            if part.function
            else ""
        )
        words = ", ".join(f"{esc(op)} {n}" for op, n in part.words.most_common(FEW + 2))
        places = list(part.places)
        where = esc(
            ", ".join(places[:FEW]) + (f" and {len(places) - FEW} more lines" if len(places) > FEW else "")
        )
        yield f'<li><span class="times">{times}</span><strong>{title}</strong><p>{words}</p>'
        yield f"<p>{where}</p>" if where else ""
        yield f"<p>{part.stages:,} stages of the proof</p></li>"
    yield f"<li><strong>Outputs</strong><p>{len(found.outputs):,}, each related to what the ranks "
    yield "hold</p></li></ol>"


def _rests(found: Findings) -> Iterator[str]:
    laws = laws_used(found.proof)
    yield listed(
        [
            esc(solver_line(found.examined)),
            esc(normalised_line(found.examined)),
            f"{found.examined.cases:,} proof cases in {found.examined.steps:,} stages",
            *(
                f"law <code>{law}</code>, used {laws[law]:,} times: {esc(LAWS[law].sentence)}"
                for law in LAWS
                if laws[law]
            ),
            "arithmetic is proved at a proved sufficient reduced size; data movement at true "
            "sizes. A policy may "
            "refuse reduced sizes",
            "opaque kernels: none",
            "<code>tv-check --trusted-base</code> prints everything that the verdict rests on",
        ]
    )  # fmt: skip


def _said(found: Findings) -> Iterator[str]:
    rows = [(FIELDS[name], said) for name, said in found.about.items()]
    rows += [
        (f"origin, {key}", value) for key, _, value in (p.partition(": ") for p in provenance(found.plan))
    ]
    if rows:
        yield '<div class="scroll"><table class="stack"><tbody>'
        yield "".join(f'<tr><th scope="row">{esc(k)}</th><td>{esc(v)}</td></tr>' for k, v in rows)
        yield "</tbody></table></div>"


def _obligations(found: Findings) -> Iterator[str]:
    files = list(found.examined.files.items())
    if not files:
        return
    yield "<p>Each is refuted by showing that its premises and the opposite of what is to show "
    yield "cannot hold together.</p>"
    if len(files) > MOST:
        yield f"<p>The first {MOST} of {len(files):,} are written out here; all of them are in "
        yield "<code>obligations/</code>.</p>"
    for number, text in files[:MOST]:
        told = written(text)
        yield f'<details><summary><span class="m">{number}</span>{esc(told.title)}</summary><dl '
        yield 'class="formulas">'
        formulas = [*told.formulas[:-1][:LINES], *told.formulas[-1:]]
        for kind, formula in formulas[:-1]:
            yield f"<dt>{kind}</dt><dd>{formula}</dd>"
        if len(told.formulas) > len(formulas):
            yield f"<dt></dt><dd>and {len(told.formulas) - len(formulas)} more premises</dd>"
        for kind, formula in formulas[-1:]:
            yield f'<dt>{kind}</dt><dd class="goal">{formula}</dd>'
        legend = [f"{name} is {what}" for name, what in told.legend[: 2 * LINES]]
        yield f"</dl>{listed(legend, ' class=legend')}</details>\n"
