"""``tv-show``: what a plan or a bundle says, as text."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from certificates.errors import FormatError
from certificates.showing.proof_text import bundle_text, stage_text

from .bundle.archive import is_archive, read_member
from .canonical import parse_json
from .endings import ending, version
from .plan.functions import body_plan
from .plan.plan import Plan
from .plan.reading import load, loads
from .proof.reading import proof_from_json, verdicts_from_json
from .proof.stages import Proof
from .showing.plan_text import (
    class_text,
    function_text,
    header_text,
    plan_text,
    program_text,
    relations_text,
    value_text,
)
from .words import clean, one_line

_MALFORMED = 5


@click.command(name="tv-show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--spec", is_flag=True, help="Show the specification.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Show the program of a rank class.")
@click.option("--relations", is_flag=True, help="Show the input and output relations.")
@click.option("--op", "values", multiple=True, metavar="%N", help="Show a value, its operands and readers.")
@click.option("--function", "functions", multiple=True, metavar="NAME", help="Show a function's bodies.")
@click.option(
    "--stage", "stages", multiple=True, metavar="ID", help="Show a stage of a bundle; 0.17 is one of lemma 0."
)
@version
@ending("tv-show")
def main(
    path: Path,
    spec: bool,
    classes: tuple[str, ...],
    relations: bool,
    values: tuple[str, ...],
    functions: tuple[str, ...],
    stages: tuple[str, ...],
) -> None:
    """Show the plan file or the bundle (a folder or an archive) PATH.

    Of a plan: mesh, groups, rank classes, relations and programs. Of a bundle: claimed verdicts and stages;
    tv-check says whether they hold. Options select parts and may be combined and repeated. --op takes a value
    of any program (%17, params.w) or of one (s:%17 for the specification, c0:%17 for class c0).

    Exit codes: 0 shown, 2 usage, 5 unreadable or malformed file, 6 cannot be written, 130 interrupted,
    143 terminated.
    """
    try:
        sections = _sections(path, spec, classes, relations, values, functions, stages)
    except FormatError as error:
        click.echo(f"tv-show: {one_line(error)}", err=True)
        sys.exit(_MALFORMED)
    for i, lines in enumerate(sections):
        click.echo(("\n" if i else "") + "\n".join(lines))


def _sections(
    path: Path,
    spec: bool,
    classes: tuple[str, ...],
    relations: bool,
    values: tuple[str, ...],
    functions: tuple[str, ...],
    stages: tuple[str, ...],
) -> list[list[str]]:
    """What the options select, or a whole plan, or the overview of a bundle."""
    proof: Proof | None = None
    bundle = path.is_dir() or is_archive(path)
    plan = loads(read_member(path, "plan.json")) if bundle else load(path)
    if bundle:
        proof = proof_from_json(parse_json(read_member(path, "proof.json")))
    sections: list[list[str]] = []
    if relations:
        sections += [header_text(plan), relations_text(plan)]
    if spec:
        sections.append(program_text("specification", plan.specification, plan.sources))
    for name in classes:
        if name not in plan.by_class:
            known = ", ".join(plan.by_class)
            raise click.UsageError(f"no rank class {clean(name)}; the plan has {known}")
        sections.append(class_text(plan, plan.by_class[name]))
    sections += [lines for name in values for lines in _values(plan, name)]
    for name in functions:
        if name not in plan.functions:
            known = ", ".join(plan.functions) or "none"
            raise click.UsageError(f"no function {clean(name)}; the plan has {known}")
        sections.append(function_text(plan, name))
    for number in stages:
        if proof is None:
            raise click.UsageError("a plan has no stages; --stage needs a bundle")
        sections.append(_stage(plan, proof, number))
    if sections:
        return sections
    if proof is None:
        return [plan_text(plan)]
    verdicts = verdicts_from_json(parse_json(read_member(path, "manifest.json")))
    return [header_text(plan), *bundle_text(proof, verdicts)]


def _stage(plan: Plan, proof: Proof, name: str) -> list[str]:
    """A stage by its number, or by the numbers of a lemma and of a stage in it."""
    lemma, _, number = name.rpartition(".")
    if not number.isdecimal() or (lemma and not lemma.isdecimal()):
        raise click.UsageError(f"{clean(name)} is no stage; write 17, or 0.17 for stage 17 of lemma 0")
    if lemma:
        if int(lemma) >= len(proof.lemmas):
            raise click.UsageError(f"no lemma {lemma}; the bundle has {len(proof.lemmas)}")
        about = proof.lemmas[int(lemma)]
        plan, proof = body_plan(plan, about.function), Proof(about.facts, about.stages)
    if int(number) >= len(proof.stages):
        raise click.UsageError(f"no stage {number}; the bundle has {len(proof.stages)}")
    return stage_text(plan, proof, int(number))


def _values(plan: Plan, name: str) -> list[list[str]]:
    """Sections about a value in every program that has it."""
    owner, _, value = name.rpartition(":")
    programs = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    if owner:
        programs = {k: p for k, p in programs.items() if k == owner}
    found = {k: p for k, p in programs.items() if value in p.types()}
    if not found:
        raise click.UsageError(f"no value {clean(name)} in the plan")
    titles = {k: "specification" if k == "s" else f"class {k}" for k in found}
    return [value_text(titles[k], p, value, plan.sources) for k, p in found.items()]
