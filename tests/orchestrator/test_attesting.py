"""tv-attest: the commands of docs/attest.md do what they say; nothing is certified that is not proved."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("securesystemslib")

from bench.documents import environment
from certificates.attesting.statement import subject
from certificates.plan.plan import Plan
from orchestrator.attesting import main
from orchestrator.emit import emit
from tests.certificates.attesting.test_envelope import KINDS, keys
from tests.corpus.mutate import mutants

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "attest.md").read_text("utf-8")
#: A timestamp authority of our own, for one test.
AUTHORITY = """
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out authority.pem -subj /CN=ca -days 2
openssl req -newkey rsa:2048 -nodes -keyout tsa.key -out tsa.csr -subj /CN=tsa
printf 'extendedKeyUsage=critical,timeStamping\\n' > extensions
openssl x509 -req -in tsa.csr -CA authority.pem -CAkey ca.key -days 2 -extfile extensions -out tsa.pem
printf '[a]\\nserial=serial\\nsigner_digest=sha256\\ndefault_policy=1.2.3\\ndigests=sha256\\n' > tsa.conf
printf 01 > serial
openssl ts -reply -config tsa.conf -section a -queryfile bundle.tsq -signer tsa.pem -inkey tsa.key \\
  -out bundle.tsr
"""


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```sh\n(.*?)```\n<!-- end -->", DOCUMENT, re.DOTALL)
    assert found, name
    return found[1]


@pytest.fixture(scope="module")
def emitted(mlp: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emitted") / "bundle"
    emit(mlp, folder, jobs=1, about={"who": "team"})
    return folder


@pytest.fixture
def bundle(emitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(emitted, tmp_path / "bundle"))


def attest(*words: object) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


def seal(bundle: Path) -> Path:
    """The file that lists the digests of all others."""
    return bundle / str(subject(bundle)["name"])


def run(commands: str, folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_document_signs_and_verifies_and_openssl_alone_does_too(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    folder, ours = bundle.parent, environment(tmp_path / "bin")
    said = run(block("sign"), folder, ours)
    assert "SIGNED: VALID: all 5 outputs" in said and re.search(r"solvers: z3 \d+\..*, cvc5 \d", said)
    bare = {"PATH": os.defpath}
    assert "Verified Successfully" in run(block("openssl"), folder, bare)
    assert run(block("subject"), folder, bare) == "tagmanifest-sha256.txt: OK\n"
    statement = json.loads((folder / "statement.json").read_bytes())
    assert len(statement["predicate"]["claim"]["outputs"]) == 5
    run(block("timestamp query") + AUTHORITY, folder, bare)
    said = run(block("timestamp verify"), folder, ours)
    assert re.search(r"existed at \w+ +\d+ .* GMT, as the authority says", said)
    (folder / "bundle.tsr").write_bytes(b"no reply")
    wrong = attest(
        *("verify", bundle, folder / "bundle.dsse.json", "--key", folder / "pub.pem"),
        *("--timestamp", folder / "bundle.tsr", "--authority", folder / "authority.pem"),
    )
    assert wrong.exit_code == 5 and "is no timestamp of" in wrong.output


def test_openssl_alone_verifies_p256_too(bundle: Path) -> None:
    private, public = keys(bundle.parent, "p256")
    public.rename(bundle.parent / "pub.pem")
    assert (
        attest("sign", bundle, "--key", private, "--out", bundle.parent / "bundle.dsse.json").exit_code == 0
    )
    assert "Verified Successfully" in run(block("openssl"), bundle.parent, {"PATH": os.defpath})
    assert set(KINDS) >= {"ed25519", "p256"}


def test_what_is_not_proved_is_not_signed(mlp: Plan, tmp_path: Path) -> None:
    """A refuted output, an unsolved bundle: no certificate. A summary says FAILED, and verification fails."""
    private, public = keys(tmp_path)
    broken = next(m for m in mutants(mlp) if m.operator == "swap" and "subtract %31" in m.where)
    emit(broken.build(), tmp_path / "bad", jobs=1)
    result = attest("sign", tmp_path / "bad", "--key", private, "--out", tmp_path / "bad.json")
    assert result.exit_code == 1 and result.output.startswith("NOT SIGNED: REFUTED: 1 of 5 outputs")
    assert not (tmp_path / "bad.json").exists()
    when = ("--time", "2026-11-24T00:00:00Z")
    result = attest(
        "sign", tmp_path / "bad", "--summary", *when, "--key", private, "--out", tmp_path / "bad.json"
    )
    assert result.exit_code == 0
    result = attest("verify", tmp_path / "bad", tmp_path / "bad.json", "--key", public)
    assert result.exit_code == 1
    assert result.output == "FAILED: as urn:trainverify:verifier found at 2026-11-24T00:00:00Z, FAILED\n"


def test_an_envelope_speaks_of_one_whole_bundle(bundle: Path) -> None:
    folder = bundle.parent
    private, public = keys(folder)
    assert attest("sign", bundle, "--summary", "--key", private, "--out", folder / "e").exit_code == 0
    again = attest("sign", bundle, "--summary", "--key", private, "--out", folder / "e")
    assert again.exit_code == 2 and "exists and is not overwritten" in again.output
    assert attest("verify", bundle, folder / "e", "--key", public).output.startswith("PASSED: as ")
    (bundle / "data/about.json").write_text('{"who":"another team"}\n')
    result = attest("verify", bundle, folder / "e", "--key", public)
    assert result.exit_code == 5 and "about.json" in result.output
    tags = (bundle / "tagmanifest-sha256.txt").read_text()
    (bundle / "tagmanifest-sha256.txt").write_text(tags.replace("0", "1"))
    result = attest("verify", bundle, folder / "e", "--key", public)
    assert result.exit_code == 1 and "speaks of another bundle" in result.output
