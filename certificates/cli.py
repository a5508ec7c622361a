"""``tv-show``: what a plan says, as text."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from . import plan as plans
from .errors import FormatError
from .plan import Plan
from .text import class_text, clean, header_text, plan_text, program_text, relations_text, value_text

_MALFORMED = 5


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--spec", is_flag=True, help="Show the specification.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Show the program of a rank class.")
@click.option("--relations", is_flag=True, help="Show the input and output relations.")
@click.option("--op", "values", multiple=True, metavar="%N", help="Show a value, its operands and readers.")
def main(path: Path, spec: bool, classes: tuple[str, ...], relations: bool, values: tuple[str, ...]) -> None:
    """Show the plan file PATH: mesh, groups, rank classes, relations and programs.

    Options select parts and may be combined and repeated; without any, everything is shown. --op takes a
    value of any program (%17, params.w) or of one (s:%17 for the specification, c0:%17 for class c0).

    Exit codes: 0 shown, 2 usage, 5 unreadable or malformed file.
    """
    try:
        plan = plans.load(path)
    except FormatError as error:
        click.echo(f"tv-show: {one_line(error)}", err=True)
        sys.exit(_MALFORMED)
    sections = []
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
    for i, lines in enumerate(sections or [plan_text(plan)]):
        click.echo(("\n" if i else "") + "\n".join(lines))


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


def one_line(error: Exception, limit: int = 500) -> str:
    """A message fit for one line of a terminal, whatever the file contained."""
    text = clean(" ".join(str(error).split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."
