"""Parts of a proof over files of their own become one proof over shared files."""

from __future__ import annotations

import json

from certificates.plan.affine import Affine
from certificates.proof.facts import Fact
from certificates.proof.reading import proof_from_json
from certificates.proof.stages import CallStage, LayoutStage
from orchestrator.proving.assembly import Files, Part, assembled

FACT = Fact("c0:x", "s:x", (), (Affine(),), ())


def part(*texts: str, calls: int = 0, concludes: tuple[int, ...] = ()) -> Part:
    """A stage for each file, and calls of the first lemma."""
    files = Files()
    stages = [LayoutStage(0, "", (), (), files.name(text)) for text in texts]
    return Part.of([FACT], [*stages, *(CallStage(0, i) for i in range(calls))], files, concludes)


def test_files_that_differ_in_comments_are_one() -> None:
    """A title in a comment must not make two obligations of one."""
    files = Files()
    names = [files.name(t) for t in ("; one\n(check-sat)\n", "; two\n(check-sat)\n", "(assert false)\n")]
    assert names == ["0001", "0001", "0002"]
    assert [o.text for o in files.obligations] == ["; one\n(check-sat)\n", "(assert false)\n"]


def test_lemmas_come_first_and_share_their_files_with_what_calls_them() -> None:
    inner = part("(a)\n", "(b)\n", concludes=(0,))
    main = part("(c)\n", "(b)\n", calls=2)
    whole = assembled(main, [("f0", inner)])
    assert [o.text for o in whole.obligations] == ["(a)\n", "(b)\n", "(c)\n"]
    assert list(whole.names) == [{"0001": "0001", "0002": "0002"}, {"0001": "0003", "0002": "0002"}]
    proof = proof_from_json(json.loads(whole.document))
    assert [s.file for s in proof.stages if isinstance(s, LayoutStage)] == ["0003", "0002"]
    (lemma,) = proof.lemmas
    assert (lemma.function, list(lemma.concludes)) == ("f0", [0])
    assert [s.file for s in lemma.stages if isinstance(s, LayoutStage)] == ["0001", "0002"]


def test_sizes_count_facts_and_stages_of_all_parts() -> None:
    assert assembled(part("(c)\n", calls=2), [("f0", part("(a)\n")), ("f1", part("(a)\n"))]).size == (3, 5)


def test_a_part_that_calls_nothing_is_the_whole_proof() -> None:
    main = part("(a)\n", "(b)\n")
    whole = assembled(main, [])
    assert whole.main is main and proof_from_json(json.loads(whole.document)).lemmas == ()
