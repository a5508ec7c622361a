"""How late it is for the user's code: in every other recorded step each look at a clock is hours later.

What a clock has said is followed (:mod:`.answers`), but not through code that makes a plain number of it, as
NumPy's mean does. A step that decides by such a number goes another way when hours have passed, and steps
that are recorded one after the other have to be alike.
"""

from __future__ import annotations

import datetime
import itertools
from typing import Any

#: Between two looks at a clock, in seconds.
HOURS = 3 * 3600


class Pace:
    """Turns from step to step."""

    def __init__(self) -> None:
        self._steps, self._looks = itertools.cycle((0, HOURS)), 0
        self._between = 0

    def turn(self) -> None:
        """Another step is recorded."""
        self._between = next(self._steps)

    @property
    def ahead(self) -> bool:
        """Do clocks go ahead in this step?"""
        return self._between > 0

    def late(self, value: Any, unit: float = 1) -> Any:
        """What a clock says, as much later; ``unit`` are its ticks in a second. A date knows its own."""
        self._looks += self._between
        if isinstance(value, datetime.datetime):
            return value + datetime.timedelta(seconds=self._looks)
        if isinstance(value, datetime.date):
            return value + datetime.timedelta(days=self._looks // 86400)
        return value + type(value)(self._looks * unit)


PACE = Pace()
