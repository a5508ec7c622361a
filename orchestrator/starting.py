"""The commands of this package, each loaded when it is called (:mod:`certificates.starting`)."""

from __future__ import annotations

from typing import NoReturn

from certificates.starting import start


def tv_capture() -> NoReturn:
    start("tv-capture", "orchestrator.capture.cli", "main")


def tv_emit() -> NoReturn:
    start("tv-emit", "orchestrator.cli", "emit_main")


def tv_verify() -> NoReturn:
    start("tv-verify", "orchestrator.cli", "verify_main")


def tv_attest() -> NoReturn:
    start("tv-attest", "orchestrator.attesting", "main")
