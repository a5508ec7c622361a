"""What a report is made of: an examined bundle, with the verdicts that it claims.

No solver is asked. An output is called here what the bundle calls it, as far as the records allow: `conclude`
decides that, given that every obligation were refuted. Whether they are is the task of `tv-check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..kernel import Examined, Output, conclude, invariant
from ..language.plan import Plan
from ..language.proof import Proof
from ..refuting.witness import Replay
from .about import read_about
from .verdict import shown

WORDS = {
    "PROVED": "All {n} outputs of the distributed training step equal the single-device "
    "model's, under the stated "
    "relations.",
    "REFUTED": "{refuted} of {n} outputs of the distributed training step differ from the "
    "single-device model's "
    "on a concrete input.",
    "UNKNOWN": "{unknown} of {n} outputs have no proof. Nothing is certified for the step as a whole.",
    "UNSAFE": "{proved} of {n} outputs are proved, and the schedule of the step is not safe.",
    "UNSOLVED": "The obligations of {complete} of {n} outputs are written, and no solver was "
    "asked. Nothing is "
    "certified yet.",
}


@dataclass(frozen=True)
class Findings:
    """An examined bundle; `outputs` has a verdict per output relation, `invariant` why a "
    "run is not covered."""

    examined: Examined
    proof: Proof
    members: Mapping[str, bytes]
    refuted: Mapping[int, Replay]
    outputs: tuple[Output, ...]
    complete: int
    invariant: tuple[str, ...]
    about: Mapping[str, str]

    @property
    def plan(self) -> Plan:
        return self.examined.plan

    @property
    def word(self) -> str:
        """The verdict on the step: of its outputs the worst, or of its schedule. Nothing claimed is no
        success."""
        kinds = {o.verdict for o in self.outputs}
        if "REFUTED" not in kinds and self.examined.safe is not None and not self.examined.safe.safe:
            return "UNSAFE"
        if "REFUTED" in kinds or kinds == {"PROVED"}:
            return "REFUTED" if "REFUTED" in kinds else "PROVED"
        return "UNSOLVED" if kinds and self.examined.manifest.status == "unknown" else "UNKNOWN"

    @property
    def sentence(self) -> str:
        kinds = [o.verdict for o in self.outputs]
        return WORDS[self.word].format(
            n=len(kinds),
            refuted=kinds.count("REFUTED"),
            proved=kinds.count("PROVED"),
            unknown=kinds.count("UNKNOWN"),
            complete=self.complete,
        )

    @property
    def ranks(self) -> int:
        count = 1
        for axis, size in self.plan.mesh:
            count *= 1 if axis in self.plan.time else size
        return count


def find(
    examined: Examined, proof: Proof, members: Mapping[str, bytes], refuted: Mapping[int, Replay]
) -> Findings:
    """`Rejected` where the verdicts of the manifest go beyond the records."""
    refuting = {"the records": dict.fromkeys(examined.files, "unsat")}
    best = conclude(examined, refuting, 1, {i: shown(r) for i, r in refuted.items()}).outputs
    outputs = tuple(
        o if o.verdict == word else Output(o.spec, o.plan, "UNKNOWN", reason)
        for o, (_, _, word, reason) in zip(best, examined.manifest.verdicts, strict=True)
    )
    complete = sum(o.verdict == "PROVED" for o in best)
    return Findings(
        examined,
        proof,
        members,
        refuted,
        outputs,
        complete,
        invariant(examined.plan, outputs),
        read_about(members),
    )
