"""The two reports of a bundle. They decide nothing; `tv-check` compares them, and names a forged one."""

from __future__ import annotations

from .findings import Findings
from .page import page
from .text import text

SAME = "report.txt and report.html are what this checker writes of the bundle"
NOT_COMPARED = "outside the claim: report.txt and report.html of the bundle, which were not compared"


def render(found: Findings) -> dict[str, str]:
    """Both texts: a function of the bundle alone, without dates, paths or timings."""
    return {"report.txt": text(found), "report.html": page(found)}


def unreadable(reason: str) -> dict[str, str]:
    """What the reports of a bundle say that does not hold, so that it has some."""
    line = f"NO CERTIFICATE: the checker does not accept this bundle: {reason}\n"
    return {
        "report.txt": line,
        "report.html": f"<!DOCTYPE html>\n<title>NO CERTIFICATE</title>\n<pre>{line}</pre>\n",
    }
