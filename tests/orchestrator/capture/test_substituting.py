"""A function stands for another one in its module, and where a user has imported it by name."""

from __future__ import annotations

import os.path
import sys
from os.path import basename

from orchestrator.capture.substituting import by_user, substituted


def test_a_function_is_replaced_wherever_a_user_has_it_and_put_back() -> None:
    original = os.path.basename
    with substituted({(os.path, "basename"): lambda made: lambda path: made(path).upper()}):
        assert os.path.basename("a/b") == "B" and basename("a/b") == "B"
    assert os.path.basename is original and basename is original


def test_python_s_own_frames_stand_for_who_called_them() -> None:
    seen = []
    sorted([1], key=lambda _: seen.append(by_user(sys._getframe())))
    assert seen == [True] and not by_user(None)
