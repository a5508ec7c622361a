"""The table of obligations: one line each, with words that a person can read."""

from __future__ import annotations

import hashlib

from certificates.bundle.listing import obligations_tsv
from certificates.canonical import parse_json
from certificates.plan.affine import Affine
from certificates.proof.facts import Fact
from certificates.proof.stages import AlgebraStage, CallStage, Case, LayoutStage, Lemma, Proof
from certificates.proof.writing import proof_bytes

I = Affine.symbol("i")  # noqa: E741
FACT = Fact("c0:%1", "s:%2", (("i", 0, 4),), (I,), (I,))


def test_every_obligation_has_a_line() -> None:
    inside = LayoutStage(0, "moved", (), (), "0001")
    product = AlgebraStage(0, "product", {}, {}, (), (Case((), (), "0002"), Case((), (), "0003")))
    same = LayoutStage(0, "moved again", (), (), "0001")
    lemma = Lemma("f0", [FACT], [inside], [0])
    proof = Proof([FACT], [CallStage(0, 0), product, same], (lemma,))
    texts = {"0001": "a\n", "0002": "b\n", "0003": "c\n", "0004": "d\n"}
    lines = obligations_tsv(parse_json(proof_bytes(proof)), texts).decode().splitlines()
    assert lines[0] == "id\tfile\tsha256\tkind\tsays"
    rows = [line.split("\t") for line in lines[1:]]
    assert [(r[0], r[1], r[3]) for r in rows] == [
        ("0001", "obligations/0001.smt2", "layout"),
        ("0002", "obligations/0002.smt2", "algebra"),
        ("0003", "obligations/0003.smt2", "algebra"),
        ("0004", "obligations/0004.smt2", "none"),
    ]
    assert [r[2] for r in rows] == [hashlib.sha256(t.encode()).hexdigest() for t in texts.values()]
    words = "c0:%1[i] = s:%2[i] for i in [0,4)"
    assert rows[0][4] == f"in function f0: moved; so {words} (and 1 more of this form)"
    assert rows[1][4] == rows[2][4] == f"product; so {words}"


def test_a_title_cannot_break_the_table() -> None:
    proof = Proof([FACT], [LayoutStage(0, "a\tb\nc", (), (), "0001")])
    lines = obligations_tsv(parse_json(proof_bytes(proof)), {"0001": ""}).decode().splitlines()
    assert len(lines) == 2 and lines[1].count("\t") == 4
