"""The role of an input in a run of many steps: given anew, constant, or else a state."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import FormatError
from .program import Program


def check_roles(given: Sequence[str], constants: Sequence[str], programs: Sequence[Program]) -> None:
    """Both lists are sorted and name inputs, none in both; a step leaves what is declared as it was."""
    for role, names in (("given", given), ("constants", constants)):
        if list(names) != sorted(set(names)):
            raise FormatError(f"{role} must be a sorted list of different names")
        for name in names:
            if not any(name in program.inputs for program in programs):
                raise FormatError(f"{role} names {name}, which is no input")
            if any(program.outputs.get(name, name) != name for program in programs):
                raise FormatError(f"{role} names {name}, which a step leaves with another value")
    both = sorted(set(given) & set(constants))
    if both:
        raise FormatError(f"{both[0]} is declared both given and constant")
