"""``tv-capture FILE.py --out PLAN``: exit code 0, 2 usage, 3 not capturable, 5 unusable file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from certificates.plan import dump

from .errors import CaptureError, DefinitionError


def _setting(text: str) -> tuple[str, int | str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, int(value) if value.lstrip("-").isdigit() else value


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Plan file to write; .gz compresses.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Argument of the file's definition()."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Ranks traced at a time.")
@click.option(
    "--most", type=click.IntRange(min=1), default=64, show_default=True, help="Ranks traced of a large mesh."
)
@click.option("--list-unsupported", is_flag=True, help="Name every op without a lowering, and write nothing.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def main(
    file: Path,
    out: Path | None,
    settings: tuple[str, ...],
    jobs: int | None,
    most: int,
    list_unsupported: bool,
    quiet: bool,
) -> None:
    """Capture the training step that FILE defines (see docs/capture.md) as a plan."""
    if out is None and not list_unsupported:
        raise click.UsageError("--out is needed, or --list-unsupported")
    try:
        from .assemble import capture, unsupported_ops
        from .userfile import load_definition
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{error}; install the extra: pip install 'trainverify[torch]'") from error
    try:
        definition = load_definition(file, dict(_setting(s) for s in settings))
        if list_unsupported:
            ops = unsupported_ops(definition)
            for op in ops:
                click.echo(op)
            sys.exit(3 if ops else 0)
        report = (lambda _line: None) if quiet else (lambda line: click.echo(line, err=True))
        plan = capture(definition, jobs=jobs, most=most, root=file.parent, report=report)
    except DefinitionError as error:
        click.echo(f"tv-capture: {error}", err=True)
        sys.exit(5)
    except CaptureError as error:
        click.echo(f"tv-capture: {error}", err=True)
        sys.exit(3)
    assert out is not None
    dump(plan, out)
    ops_count = sum(len(c.program.ops) for c in plan.classes)
    click.echo(f"{out}: {plan.mesh.ranks} ranks in {len(plan.classes)} classes, {ops_count} ops")
