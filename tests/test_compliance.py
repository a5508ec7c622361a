"""docs/compliance.md names fields that there are, and claims no compliance."""

from __future__ import annotations

import re
from pathlib import Path

from certificates.attesting.statement import certificate
from certificates.bundle.about import FIELDS
from checker.report.page import page
from tests.certificates.attesting.test_statement import ABOUT, FOUND

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "compliance.md").read_text("utf-8")


def test_it_claims_nothing() -> None:
    assert "**It claims compliance with none of them.**" in TEXT
    assert not re.search(r"\b(complies|compliant|conforms|certified)\b", TEXT)


def test_every_field_is_there() -> None:
    """A section of the page, a member of the predicate, something that can be said of a run."""
    source = Path(page.__code__.co_filename).read_text("utf-8")
    sections = set(re.findall(r"^        \(\"\w+\", \"(.+?)\", _", source, re.MULTILINE))
    assert len(sections) == 12
    said = {"Outputs", "Is the plan yours?", "Did you check?", "What is left?"}
    strong = {"It claims compliance with none of them."}
    assert set(re.findall(r"\*([A-Z][^*]+)\*(?!\*)", TEXT)) <= sections | said | strong
    predicate = certificate(ABOUT, 0, FOUND, "tv")["predicate"]
    members = set(predicate) | {f"claim.{name}" for name in predicate["claim"]}
    fields = TEXT[TEXT.index("## The fields") : TEXT.index("## EU AI Act")]
    named = set(re.findall(r"`([a-z]\w*(?:\.\w+)?)`", fields)) - {"interpolated_ranks"}
    named = {name for name in named if not name.endswith((".html", ".txt", ".json"))}
    assert named <= members, named - members
    assert set(re.findall(r"`about\.json` `(\w+)`", TEXT)) <= set(FIELDS)
