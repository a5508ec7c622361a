"""Part 17: layers of experts of libraries, captured as they run; and mistakes that are refused."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from orchestrator.capture import CaptureError, Definition

from . import mixtral
from .kit import ROOT, Part, captured

#: By number: the part, the library that it needs, what is refused with words of why, and how it is written.
EXPERTS: dict[str, tuple[Part, str, Mapping[str, tuple[Any, str]], Callable[[str], Definition]]] = {
    "17": (mixtral.PART, "transformers", mixtral.REFUSED, mixtral.refused),
}
OF_LIBRARIES: dict[str, Part] = {number: part for number, (part, *_) in EXPERTS.items()}


def installed(number: str) -> bool:
    """Is the library here that a part needs?"""
    return number not in EXPERTS or importlib.util.find_spec(EXPERTS[number][1]) is not None


def told(number: str, mistake: str) -> str:
    """The first line of why a mistake is refused, without lines of code, which move."""
    with pytest.raises(CaptureError) as caught:
        captured(EXPERTS[number][3](mistake))
    message = re.sub(r"\.py:\d+", ".py", caught.value.message.splitlines()[0])
    return message.replace(f"{ROOT}/", "")


def refusals() -> Iterator[tuple[str, str, str, str]]:
    """Part, mistake, what becomes of it, and why, of the libraries that are installed."""
    for number, (part, _, refused, _) in EXPERTS.items():
        for mistake in refused if installed(number) else ():
            yield part.title, mistake, "refused", told(number, mistake)
