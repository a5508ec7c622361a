"""report.html: whole, without scripts, readable by machines for people who hear it, hostile names escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from checker.report import page as module
from checker.report.findings import Findings
from checker.report.page import page
from checker.report.verdict import CONDITIONS, OUTSIDE

VOID = {"meta", "br", "img", "hr", "link", "input"}
HOSTILE = "</code><script>alert(1)</script><img src=x onerror=alert(2)>"


class Reader(HTMLParser):
    """Elements with their attributes; fails where an end does not match its start."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(params=["right", "wrong"])
def found(request: pytest.FixtureRequest) -> Findings:
    either: Findings = request.getfixturevalue(request.param)
    return either


def test_nothing_runs_and_nothing_is_fetched(found: Findings) -> None:
    tags = Reader(page(found)).found
    assert not {t for t, _ in tags} & {"script", "iframe", "object", "embed", "link", "img", "form", "base"}
    names = {name for _, attrs in tags for name in attrs}
    assert not {n for n in names if n.startswith("on")} and "src" not in names
    assert all(a["href"].startswith("#") for t, a in tags if t == "a" and a["href"])
    assert "default-src 'none'" in page(found)


def test_it_can_be_read_aloud(found: Findings) -> None:
    """One language, one main heading, sections named by theirs, header cells with a scope, named pictures."""
    tags = Reader(page(found)).found
    assert ("html", {"lang": "en"}) in tags and [t for t, _ in tags].count("h1") == 1
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(a["aria-labelledby"] in ids for t, a in tags if t == "section")
    assert {a["href"] for t, a in tags if t == "a"} <= {f"#{i}" for i in ids}
    assert all(a.get("scope") in ("col", "row") for t, a in tags if t == "th")
    assert all(a.get("role") == "img" and a.get("aria-label") for t, a in tags if t == "svg")
    levels = [int(t[1]) for t, _ in tags if re.fullmatch("h[1-6]", t)]
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_everything_that_the_claim_says_and_does_not_say_is_there(found: Findings) -> None:
    text = Reader(page(found)).text
    for words in (*OUTSIDE, found.sentence, found.plan.digest, "tv-check BUNDLE", "What was assumed"):
        assert words in text, words
    assert all(condition in text for condition in CONDITIONS) is (not found.invariant)
    assert all(f"{number}" in text for number in found.examined.files)


def test_an_open_output_is_no_footnote(wrong: Findings) -> None:
    text = Reader(page(wrong)).text
    assert text.index("REFUTED 1 of 5 outputs") < text.index("What this says")
    assert "An output that is not called PROVED has no certificate." in text
    assert "The script" in text and "np.einsum" in text


def test_what_the_maker_says_is_apart_and_escaped(right: Findings) -> None:
    html = page(right)
    assert "the &lt;b&gt;team&lt;/b&gt;" in html and "<b>team" not in html
    text = Reader(html).text
    assert text.rindex("Said by the maker, not checked") < text.index("made by")


def test_hostile_names_stay_text(wrong: Findings) -> None:
    """Names, titles, reasons and files of a plan are a stranger's."""
    plan = replace(
        wrong.plan,
        name=HOSTILE,
        sources=tuple(HOSTILE for _ in wrong.plan.sources),
        provenance={HOSTILE: HOSTILE, "interpolated_ranks": HOSTILE},
        ranges={HOSTILE: (0, 1)},
    )
    manifest = wrong.examined.manifest
    verdicts = tuple((*v[:3], HOSTILE) for v in manifest.verdicts)
    files = {n: t.replace(b"\n; ", f"\n; {HOSTILE} ".encode()) for n, t in wrong.examined.files.items()}
    examined = replace(
        wrong.examined, plan=plan, manifest=manifest._replace(verdicts=verdicts), files=files,
        padding=(HOSTILE,), assumptions=(HOSTILE,),
    )  # fmt: skip
    outputs = tuple(replace(o, reason=HOSTILE) for o in wrong.outputs)
    html = page(
        replace(wrong, examined=examined, outputs=outputs, invariant=(HOSTILE,), about={"who": HOSTILE})
    )
    tags = {t for t, _ in Reader(html).found}
    assert not tags & {"script", "img"} and html.count("&lt;script&gt;") > 10


def test_of_many_obligations_the_first_are_written_out(
    right: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = len(right.examined.files)
    assert total <= module.MOST and "are written out here" not in page(right)
    monkeypatch.setattr(module, "MOST", 3)
    html = page(right)
    assert html.count('<dl class="formulas">') == 3 and f"The first 3 of {total} are written out here" in html


def test_of_many_premises_the_first_are_written_out(right: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES", 1)
    assert re.search(r"and \d+ more premises", page(right))


@pytest.mark.parametrize(("reasons", "more"), [(8, ""), (9, "and 1 more"), (10, "and 2 more")])
def test_of_many_reasons_against_an_invariant_eight_are_written_out(
    right: Findings, reasons: int, more: str
) -> None:
    said = tuple(f"{letter}.weight has no proof" for letter in "abcdefghij"[:reasons])
    text = Reader(page(replace(right, invariant=said))).text
    assert [w in text for w in said] == [k < 8 for k in range(reasons)]
    assert more in text and ("more of this kind" in text) is bool(more)
