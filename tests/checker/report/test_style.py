"""The style sheet needs nothing from elsewhere, and text is readable in light, in dark and on paper."""

from __future__ import annotations

import re

import pytest

from checker.report.style import STYLE


def test_nothing_is_fetched() -> None:
    assert not re.search(r"url\(|@import|expression|</", STYLE)


def palettes() -> list[dict[str, str]]:
    """Colours by name: light, dark, paper; each with what the first says."""
    blocks = [
        dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", b)) for b in re.findall(r":root\{([^}]*)\}", STYLE)
    ]
    return [blocks[0] | b for b in blocks]


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark", "paper"])
def test_text_has_the_contrast_that_wcag_asks_for(palette: dict[str, str]) -> None:
    pairs = [("ink", "back"), ("ink", "tint"), ("soft", "back"), ("soft", "tint"), ("link", "back")]
    pairs += [(w, f"{w}back") for w in ("good", "bad", "open")] + [
        (w, "back") for w in ("good", "bad", "open")
    ]
    pairs += [("ink", f"k{i}") for i in range(6)] + [("ink", f"{w}back") for w in ("good", "bad", "open")]
    low = {(a, b): contrast(palette[a], palette[b]) for a, b in pairs}
    assert {pair: round(c, 2) for pair, c in low.items() if c < 4.5} == {}


def test_there_are_rules_for_paper_phones_and_the_dark() -> None:
    for rule in ("@media print{@page{size:A4", "@media (max-width:36rem)", "prefers-color-scheme:dark"):
        assert rule in STYLE
    assert STYLE.count("{") == STYLE.count("}")
