"""The written proof of some facts: their stages over files, with those of lemmas.

A solver that refuses a file takes down what rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from certificates.proof.facts import Fact
from certificates.proof.ghosts import Ghosts
from certificates.proof.stages import CallStage, Stage
from smtlib_emit.model import Model

from .assembly import Assembled, Files, Named, Part, assembled, texts_of
from .dependencies import dependencies, files_of, renumber
from .lemmas import Binding, Lemma
from .proved import Called, Proved, uses_of
from .stages import title


class Written:
    """The last proof, or the last part, that was written of the proved facts of one plan.

    ``facts`` are those of its knowledge and ``lemmas`` those in use, both as they grow; ``ghosts`` has those
    that named tensors rest on.
    """

    def __init__(
        self,
        model: Model,
        facts: Sequence[Fact],
        proved: Proved,
        lemmas: Sequence[Lemma],
        ghosts: Callable[[Named], Ghosts],
    ) -> None:
        self.model, self.facts, self.proved, self.lemmas = model, facts, proved, lemmas
        self._ghosts = ghosts
        self._files: dict[int, tuple[str, ...]] = {}
        #: Names of the files of each lemma, and of the main program, in the last proof.
        self._names: dict[Lemma | None, Mapping[str, str]] = {}
        self._texts: dict[tuple[int, str], tuple[str, ...]] = {}

    def texts(self, number: int, status: str) -> tuple[str, ...]:
        """The files of the stage of a proved fact; none of a fact about results of a call."""
        stage = self.proved.built[number]
        if isinstance(stage, Called):
            return ()
        if (number, status) not in self._texts:
            self._texts[number, status] = texts_of(stage, self.model, self.facts, status)
        return self._texts[number, status]

    def proof(self, wanted: Sequence[int], status: str = "unknown") -> Assembled:
        """The proved facts in dependency order, and their files (``:status`` as given)."""
        needed = self.proved.needed(wanted)
        used = self._statements(needed)
        parts = [(lemma.function, lemma.part(statements, status)) for lemma, statements in used.items()]
        # A claim that is declared, of a parameter that is handed on untouched, is named though no stage does.
        declared = [n for n in wanted if n not in self.proved.built]
        main = self._part(needed, status, {lemma: place for place, lemma in enumerate(used)}, stated=declared)
        whole = assembled(main, parts, self._ghosts)
        self._names = dict(zip((*used, None), whole.names, strict=True))
        return whole

    def _statements(self, needed: set[int]) -> dict[Lemma, set[int]]:
        """Statements of lemmas that some facts rest on; lemmas in the order they were made."""
        found: dict[Lemma, set[int]] = {}
        for n in needed:
            stage = self.proved.built.get(n)
            if isinstance(stage, Called):
                found.setdefault(stage.binding.lemma, set()).add(stage.statement)
        return {lemma: found[lemma] for lemma in self.lemmas if lemma in found}

    def part(self, goals: Sequence[int], status: str) -> Part:
        """The proof of a function's facts, which are for its callers."""
        return self._part(self.proved.needed(goals), status, {}, sorted(set(goals)))

    def _part(
        self, needed: set[int], status: str, places: Mapping[Lemma, int], goals: Sequence[int] = (),
        stated: Sequence[int] = (),
    ) -> Part:  # fmt: skip
        """Facts that stages name and those that are ``stated`` besides, the stages in order, and the goals;
        ``places`` numbers the lemmas."""
        numbers: dict[int, int] = {}
        facts: list[Fact] = []

        def number_of(old: int) -> int:
            if old not in numbers:
                numbers[old] = len(facts)
                facts.append(self.facts[old])
            return numbers[old]

        files = Files()
        stages: list[Stage | CallStage] = []
        self._files = {}
        done = {n for n in needed if n not in self.proved.built}
        waiting: dict[Binding, list[int]] = {}
        for n in needed:
            stage = self.proved.built.get(n)
            if isinstance(stage, Called):
                waiting.setdefault(stage.binding, []).append(n)
        for old in self.proved.order:
            if old not in needed:
                continue
            stage = self.proved.built[old]
            if not isinstance(stage, Called):
                for dependency in dependencies(stage):
                    number_of(dependency)
                written = files.named(renumber(stage, number_of), self.texts(old, status))
                self._files[old] = files_of(written)
                stages.append(written)
                done.add(old)
            elif old not in done:
                stages.append(CallStage(places[stage.binding.lemma], stage.binding.instance))
                done |= {n for n in waiting[stage.binding] if done.issuperset(self.proved.uses(n))}
        # An operand that is handed on is assumed and concluded; no stage names it.
        concludes = [number_of(goal) for goal in goals]
        for fact in stated:
            number_of(fact)
        return Part.of(facts, stages, files, concludes)

    def fallen(self, bad: Mapping[str, str]) -> dict[int, str]:
        """Facts that rest on one of these files of the last proof, or of the last part, and why they fall."""
        below = {lemma: lemma.fallen(_own(bad, names)) for lemma, names in self._names.items() if lemma}
        own = _own(bad, self._names[None]) if None in self._names else bad
        out: dict[int, str] = {}
        for number in self.proved.order:
            stage = self.proved.built[number]
            reasons = [
                f"{own[f]} of the obligation of: {title(self.model, self.facts[number])}"
                for f in self._files.get(number, ())
                if f in own
            ]
            if isinstance(stage, Called):
                inside = below.get(stage.binding.lemma, {})
                reasons += [inside[stage.statement]] if stage.statement in inside else []
            reasons += [out[f] for f in uses_of(stage) if f in out]
            if reasons:
                out[number] = reasons[0]
        return out


def _own(bad: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """What is said of files of a proof, by their names in one part of it."""
    return {own: bad[name] for own, name in names.items() if name in bad}
