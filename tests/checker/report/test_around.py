"""Around the first tensor that differs: both sides, what is proved there, who says that it is this one."""

from __future__ import annotations

import re
from dataclasses import replace

from checker.report.around import both_sides
from checker.report.findings import Findings


def centre(svg: str) -> str:
    (found,) = re.findall(r'class="node wrong last"><rect[^>]*/><text[^>]*>(\S+)', svg)
    return str(found)


def test_the_makers_diagnosis_is_shown_and_called_unchecked(wrong: Findings) -> None:
    at = next(iter(wrong.refuted))
    left, right, how = both_sides(wrong, at)
    assert centre(right) == "%31" and "nobody checked" in how
    assert centre(left) == wrong.plan.spec.outputs[wrong.plan.outputs[at].spec]
    assert "node proved" in right, "what is proved next to it narrows the search"


def test_without_a_diagnosis_it_is_the_output(wrong: Findings) -> None:
    at = next(iter(wrong.refuted))
    manifest = wrong.examined.manifest
    for said in ("", "x.py:3: `subtract %999` is wrong", "x.py:3: `nothing %31` is wrong"):
        verdicts = tuple((*v[:3], said) for v in manifest.verdicts)
        examined = replace(wrong.examined, manifest=manifest._replace(verdicts=verdicts))
        _, right, how = both_sides(replace(wrong, examined=examined), at)
        program = wrong.plan.classes["c0"].program
        assert centre(right) == program.outputs[wrong.plan.outputs[at].plan] and how == "the output"
