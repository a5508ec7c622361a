"""The checker as one file that Python runs: its source in a zip archive, the same bytes on every machine."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

_CHECKER = Path(__file__).parents[1] / "checker"
_MAIN = b"""\
from checker.starting import tv_check

tv_check("tv-check.pyz")
"""


def standalone(checker: Path = _CHECKER) -> bytes:
    """``tv-check.pyz``: ``python3 tv-check.pyz BUNDLE`` is ``tv-check BUNDLE``.

    Nothing is compressed (compressors differ by version), nothing has a date.
    """
    files = {f"checker/{p.relative_to(checker).as_posix()}": p.read_bytes() for p in checker.rglob("*.py")}
    files |= {"LICENSE": licence(checker), "__main__.py": _MAIN}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, files[name])
    return out.getvalue()


def licence(checker: Path = _CHECKER) -> bytes:
    """The text of the licence, which lies in the checker's folder so that it is installed with it."""
    return (checker / "LICENSE").read_bytes()
