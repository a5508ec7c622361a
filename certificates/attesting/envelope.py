"""A signed statement: a DSSE envelope in canonical JSON. Needs the extra ``trainverify[sign]``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from ..canonical import parse_json, read_bytes
from ..errors import FormatError
from .jcs import canonical
from .statement import CERTIFICATE, PAYLOAD, STATEMENT, SUMMARY


class Unverified(Exception):
    """No key that was given has signed the envelope, or it speaks of something else."""


def sign(statement: dict[str, Any], key: Path, password: bytes | None = None) -> bytes:
    """The envelope of a statement, signed with a PEM private key: Ed25519 or P-256."""
    try:
        private = load_pem_private_key(read_bytes(key), password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FormatError(f"{key} is no private key in PEM that this password opens") from error
    curve = isinstance(private, EllipticCurvePrivateKey) and isinstance(private.curve, SECP256R1)
    if not curve and not isinstance(private, Ed25519PrivateKey):
        raise FormatError(f"{key} is neither an Ed25519 nor a P-256 key")
    envelope = Envelope(canonical(statement), PAYLOAD, {})
    envelope.sign(CryptoSigner(private))
    return canonical(envelope.to_dict()) + b"\n"


def verified(data: bytes, keys: Sequence[Path]) -> dict[str, Any]:
    """The statement of an envelope that one of these PEM public keys has signed, or ``Unverified``.

    A key is found by its identifier in the envelope, as the library does it. What is signed is the payload
    with its type.
    """
    envelope = opened(data)
    if envelope.payload_type != PAYLOAD:
        raise Unverified(f"the payload is {envelope.payload_type[:60]!r}, no in-toto statement")
    try:
        envelope.verify([public(key) for key in keys], 1)
    except VerificationError:
        raise Unverified("no key that was given has signed this envelope") from None
    statement = parse_json(envelope.payload)
    if not isinstance(statement, dict) or statement.get("_type") != STATEMENT:
        raise Unverified("the payload is no in-toto statement of version 1")
    if canonical(statement) != envelope.payload:
        raise Unverified("the statement is not in canonical form")
    if statement.get("predicateType") not in (CERTIFICATE, SUMMARY):
        raise Unverified("the statement is no certificate and no verification summary")
    return statement


def opened(data: bytes) -> Envelope:
    """The envelope that a file holds; its signatures are not checked."""
    raw = parse_json(data)
    try:
        if not isinstance(raw, dict) or set(raw) != {"payload", "payloadType", "signatures"}:
            raise ValueError
        envelope: Envelope = Envelope.from_dict(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError("no DSSE envelope") from error
    return envelope


def public(path: Path) -> SSlibKey:
    """A PEM public key."""
    try:
        key = load_pem_public_key(read_bytes(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FormatError(f"{path} is no public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey | EllipticCurvePublicKey):
        raise FormatError(f"{path} is neither an Ed25519 nor a P-256 key")
    return SSlibKey.from_crypto(key)
