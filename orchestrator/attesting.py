"""``tv-attest``: signs what ``tv-check`` finds of a bundle, and verifies what others signed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certificates.attesting.statement import NotProved, certificate, subject, summary
from certificates.bundle.bundle import GENERATOR, read
from certificates.canonical import read_bytes
from certificates.endings import ending, version
from certificates.errors import FormatError
from certificates.words import clean, one_line

from .children import run_checker, timestamped

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path)


@click.group(name="tv-attest")
@version
def main() -> None:
    """Sign what tv-check finds of a bundle, and verify what others signed (needs the extra [sign])."""


@main.command(name="sign")
@click.argument("bundle", type=_FOLDER)
@click.option("--key", type=_FILE, required=True, help="PEM private key, Ed25519 or P-256.")
@click.option("--password-file", type=_FILE, help="The first line opens the key.")
@click.option("--out", type=_FILE, required=True, help="The envelope to write; never overwritten.")
@click.option("--policy", type=_FILE, help="What tv-check is to accept (policy.json).")
@click.option(
    "--summary", "as_summary", is_flag=True, help="State the verdict only, whatever it is (SLSA VSA)."
)
@click.option(
    "--verifier", default="urn:trainverify:verifier", show_default=True, help="URI of who verified."
)
@click.option("--resource", help="URI of the bundle, for a summary [default: from its digest].")
@click.option("--time", help="RFC 3339 time of a summary [default: now].")
@ending("tv-attest")
def sign_main(
    bundle: Path,
    key: Path,
    password_file: Path | None,
    out: Path,
    policy: Path | None,
    as_summary: bool,
    verifier: str,
    resource: str | None,
    time: str | None,
) -> None:
    """Run tv-check on BUNDLE and sign what it finds: an in-toto statement in a DSSE envelope.

    Exit codes: 0 signed; 1, 3 or 4 tv-check does not call the bundle VALID, and nothing is signed (with
    --summary the result is FAILED); 2 usage; 5 unreadable; 6 a file cannot be read or written.
    """
    with _guarded():
        from certificates.attesting.envelope import sign

        if out.exists():
            raise click.UsageError(f"{out} exists and is not overwritten")
        about = subject(bundle)
        checked = run_checker(bundle, *(["--policy", str(policy)] if policy else []))
        if subject(bundle) != about:
            raise FormatError(f"{bundle} changed while it was checked")
        code, found = checked.exit_code, checked.document
        statement: dict[str, Any]
        if as_summary:
            statement = summary(
                about, code, found, verifier=verifier, checker=GENERATOR, policy=policy,
                resource=resource or f"urn:sha256:{about['digest']['sha256']}",
                time=time or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            )  # fmt: skip
        else:
            try:
                statement = certificate(about, code, found, GENERATOR)
            except NotProved:
                click.echo(f"NOT SIGNED: {clean(checked.lines[-1])}")
                sys.exit(code or 3)
        password = read_bytes(password_file).splitlines()[0] if password_file else None
        signed = sign(statement, key, password)
        with out.open("xb") as file:
            try:
                file.write(signed)
                file.flush()
            except BaseException:
                out.unlink()
                raise
        click.echo(f"{out}: {statement['predicateType']} of {about['name']} {about['digest']['sha256']}")


@main.command(name="verify")
@click.argument("bundle", type=_FOLDER)
@click.argument("envelope", type=_FILE)
@click.option(
    "--key", "keys", type=_FILE, required=True, multiple=True, help="PEM public key of who may sign."
)
@click.option("--timestamp", type=_FILE, help="RFC 3161 reply for the envelope (openssl ts).")
@click.option("--authority", type=_FILE, help="PEM certificates of timestamp authorities that you trust.")
@ending("tv-attest")
def verify_main(
    bundle: Path, envelope: Path, keys: Sequence[Path], timestamp: Path | None, authority: Path | None
) -> None:
    """Verify that a key of yours signed ENVELOPE, that it speaks of BUNDLE, and that BUNDLE is whole.

    Whose word it is and what it says is printed; tv-check finds out for yourself.

    Exit codes: 0 verified, the property is stated; 1 not verified, or a summary that says FAILED; 2 usage;
    5 unreadable; 6 a file cannot be read or written.
    """
    if (timestamp is None) != (authority is None):
        raise click.UsageError("--timestamp and --authority belong together")
    with _guarded():
        from certificates.attesting.envelope import Unverified, verified

        try:
            statement = verified(read_bytes(envelope), keys)
            if statement.get("subject") != [subject(bundle)]:
                raise Unverified(f"the envelope speaks of another bundle than {bundle}")
            read(bundle)  # what the seal lists is there, byte for byte
            stamped = timestamped(envelope, timestamp, authority) if timestamp and authority else ""
        except (Unverified, FormatError) as error:
            click.echo(f"NOT VERIFIED: {one_line(error)}")
            sys.exit(5 if isinstance(error, FormatError) else 1)
        lines, failed = _said(statement)
        click.echo("\n".join(map(clean, [*lines, *([stamped] if stamped else [])])))
        sys.exit(1 if failed else 0)


def _said(statement: dict[str, Any]) -> tuple[list[str], bool]:
    """A statement in words, and whether it states that the property is absent."""
    predicate, kind = statement["predicate"], statement["predicateType"]
    if "verificationResult" in predicate:
        result = predicate["verificationResult"]
        by, levels = predicate["verifier"]["id"], ", ".join(predicate["verifiedLevels"])
        lines = [f"{result}: as {by} found at {predicate['timeVerified']}, {levels}"]
        return lines, result != "PASSED"
    solvers = ", ".join(f"{s['name']} {s['version']} ({s['unsat']} unsat)" for s in predicate["solvers"])
    return [
        f"SIGNED: {predicate['verdict']}",
        f"plan {predicate['plan']['name']}, digest {predicate['plan']['digest']['sha256']}",
        f"holds {predicate['claim']['holds']}; {len(predicate['claim']['outputs'])} outputs",
        f"solvers: {solvers}",
        f"statement {kind}",
    ], False


@contextmanager
def _guarded() -> Iterator[None]:
    """Failures that are the user's have a code and one line."""
    try:
        yield
    except FormatError as error:
        click.echo(f"MALFORMED: {one_line(error)}")
        sys.exit(5)
    except ImportError as error:
        raise click.UsageError(f"{error}: install trainverify[sign]") from error
