"""Envelopes: only a key that is trusted makes a statement, and only of what is a statement."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("securesystemslib")
pytest.importorskip("cryptography")

from certificates.attesting.envelope import Unverified, sign, verified
from certificates.attesting.jcs import canonical
from certificates.attesting.statement import SUMMARY
from certificates.errors import FormatError

SAID: dict[str, Any] = {
    "_type": "https://in-toto.io/Statement/v1", "predicateType": SUMMARY, "predicate": {}, "subject": [],
}  # fmt: skip
KINDS = {
    "ed25519": ["-algorithm", "ed25519"],
    "p256": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
    "p384": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
    "rsa": ["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
}


def keys(folder: Path, kind: str = "ed25519", name: str = "key") -> tuple[Path, Path]:
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    subprocess.run(
        ["openssl", "genpkey", *KINDS[kind], "-out", str(private)], check=True, capture_output=True
    )
    subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    return private, public


@pytest.mark.parametrize("kind", ["ed25519", "p256"])
def test_a_statement_comes_back(tmp_path: Path, kind: str) -> None:
    private, public = keys(tmp_path, kind)
    data = sign(SAID, private)
    assert verified(data, [public]) == SAID
    assert data == canonical(json.loads(data)) + b"\n", "one line, members sorted"


@pytest.mark.parametrize("kind", ["p384", "rsa"])
def test_other_keys_are_refused(tmp_path: Path, kind: str) -> None:
    private, public = keys(tmp_path, kind)
    with pytest.raises(FormatError, match="neither an Ed25519 nor a P-256 key"):
        sign(SAID, private)
    good, _ = keys(tmp_path, name="good")
    if kind == "rsa":
        with pytest.raises(FormatError, match="neither an Ed25519 nor a P-256 key"):
            verified(sign(SAID, good), [public])


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    with pytest.raises(FormatError, match="no private key"):
        sign(SAID, public)
    with pytest.raises(FormatError, match="no public key"):
        verified(sign(SAID, private), [private])


def test_a_strangers_signature_is_none(tmp_path: Path) -> None:
    private, _ = keys(tmp_path)
    _, other = keys(tmp_path, name="other")
    with pytest.raises(Unverified, match="no key that was given"):
        verified(sign(SAID, private), [other])


def changed(data: bytes, **members: Any) -> bytes:
    return json.dumps(json.loads(data) | members).encode()


def test_a_changed_envelope_is_not_verified(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    data = sign(SAID, private)
    payload = base64.b64encode(canonical(SAID | {"predicate": {"verificationResult": "PASSED"}})).decode()
    for wrong in (changed(data, payload=payload), changed(data, signatures=[])):
        with pytest.raises(Unverified, match="no key that was given"):
            verified(wrong, [public])
    with pytest.raises(Unverified, match="no in-toto statement"):
        verified(changed(data, payloadType="text/plain"), [public])


def test_a_signed_text_that_is_no_statement_of_ours_is_none(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    for said, reason in (
        ({"_type": "x"}, "no in-toto statement of version 1"),
        (
            SAID | {"predicateType": "https://slsa.dev/provenance/v1"},
            "no certificate and no verification summary",
        ),
    ):
        with pytest.raises(Unverified, match=reason):
            verified(sign(said, private), [public])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"payload":1,"payloadType":"t","signatures":[]}'])
def test_what_is_no_envelope_is_malformed(tmp_path: Path, data: bytes) -> None:
    _, public = keys(tmp_path)
    with pytest.raises(FormatError):
        verified(data, [public])
