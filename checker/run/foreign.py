"""The one thing that this folder finds out."""

from __future__ import annotations

from ..errors import CheckerError


class Foreign(CheckerError):
    """Records or a checkpoint of another run than the plan's."""

    code = 1
