"""``proof.json`` as it is written: canonical, complete, and put together from parts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from certificates.canonical import canonical_bytes
from certificates.proof.reading import proof_from_json
from certificates.proof.stages import AlgebraStage, CallStage, LayoutStage, Lemma, Proof
from certificates.proof.writing import LemmaSection, Section, document, proof_bytes, term_json


def test_proofs_round_trip(proof: Proof) -> None:
    assert proof_from_json(json.loads(proof_bytes(proof))) == proof


def test_bytes_are_canonical(proof: Proof) -> None:
    """A digest of the document is one of its content."""
    data = proof_bytes(proof)
    assert data == canonical_bytes(json.loads(data))


def test_lemmas_and_calls_round_trip(proof: Proof) -> None:
    layout = [s for s in proof.stages if isinstance(s, LayoutStage)]
    lemma = Lemma("f0", proof.facts[:2], layout, [1])
    whole = Proof(proof.facts, [CallStage(0, 3), *proof.stages], (lemma,))
    assert proof_from_json(json.loads(proof_bytes(whole))) == whole


def test_parts_are_put_together_over_files_of_other_names(proof: Proof) -> None:
    """What a part says of files in titles stays: only the names of its own files change."""
    layout, algebra = proof.stages
    assert isinstance(layout, LayoutStage) and isinstance(algebra, AlgebraStage)
    layout = replace(layout, title='"file":"0001"')
    section = Section.of(proof.facts, [layout, algebra]).with_files({"0001": "0007", "0002": "0001"})
    again = proof_from_json(json.loads(document(section, [])))
    cases = (replace(algebra.cases[0], file="0001"), *algebra.cases[1:])
    assert list(again.stages) == [replace(layout, file="0007"), replace(algebra, cases=cases)]
    assert section.size == (3, 2)


def test_a_document_of_sections_is_that_of_the_proof(proof: Proof) -> None:
    layout = [s for s in proof.stages if isinstance(s, LayoutStage)]
    lemma = Lemma("f0", proof.facts[:2], layout, (1,))
    parts = [LemmaSection("f0", Section.of(proof.facts[:2], layout), (1,))]
    main = Section.of(proof.facts, proof.stages)
    assert document(main, parts) == proof_bytes(Proof(proof.facts, proof.stages, (lemma,)))


def test_what_is_no_term_is_not_written() -> None:
    with pytest.raises(TypeError, match="not a term: 3"):
        term_json(3)
