"""The stage that proves one fact, with the premises that a solver needed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from certificates.plan.affine import Affine
from certificates.plan.ops import ELEMENTWISE
from certificates.proof.facts import Fact, Ref
from certificates.proof.stages import AlgebraStage, Case, Hyp, LayoutStage, Stage
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.layout import LayoutText
from smtlib_emit.model import Model
from smtlib_emit.sexp import without_comments

from ..cells import Cell, Cut, Digits, Unfollowable, explore
from ..errors import Unproved
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe
from ..relating.recipes import AlgebraRecipe, by_rank, direct, upwards_only
from ..relating.solving_facts import make_fact
from ..solving.premises import CoreFinder, with_ranges
from ..staging.algebra import AlgebraBuilder
from ..staging.layout import LayoutBuilder
from ..staging.refining import refined
from .dependencies import trim

#: Digits of positions that a stage of movement has symbols for: with more it is proved part by part, as what
#: solvers take grows with each, and with each part that a digit may lie in.
MAX_FRESH = 12


class Stages:
    """Stages of facts, by the facts' recipes."""

    def __init__(self, knowledge: Knowledge, cores: CoreFinder) -> None:
        self.knowledge, self.model, self.cores = knowledge, knowledge.model, cores

    def of(self, number: int) -> Stage:
        """The stage of a fact; raises :class:`Unproved`, or what its recipe raises."""
        recipe = self.knowledge.recipes[number]
        fact = self.knowledge.facts[number]
        shown = title(self.model, fact)
        if isinstance(recipe, AlgebraRecipe):
            try:
                return self._algebra(AlgebraBuilder(self.knowledge, number, recipe).build(shown))
            except NoDefinition as problem:
                first = problem
            try:
                tied = direct(self.knowledge, recipe)
                return self._algebra(AlgebraBuilder(self.knowledge, number, tied).build(shown))
            except (NoDefinition, Cut, Digits, Unfollowable):
                for axis in self.model.plan.mesh.axes:
                    apart = by_rank(recipe, axis)
                    if apart is None:
                        continue
                    try:
                        builder = AlgebraBuilder(self.knowledge, number, upwards_only(self.knowledge, apart))
                        return self._algebra(builder.build(shown))
                    except NoDefinition:
                        continue
                cut = refined(self.model, recipe)
                with contextlib.suppress(NoDefinition):
                    if cut is not None:
                        return self._algebra(AlgebraBuilder(self.knowledge, number, cut).build(shown))
                # Without a sum the stage can be proved at true sizes.
                if not all(self._pointwise(ref) for ref in recipe.expand):
                    raise Unproved(str(first)) from first
                known = tuple(dict.fromkeys(i.fact for i in recipe.instances))
                plain = self._layout(number, LayoutRecipe(recipe.expand))
                recipe = LayoutRecipe(recipe.expand, used=known)
                if plain is not None:
                    return plain
        assert isinstance(recipe, LayoutRecipe)
        stage = self._layout(number, recipe)
        if fact.rhs in self.knowledge.landmarks and (stage is None or not self._reaches(stage, fact.rhs)):
            stage = self._layout(number, replace(recipe, expand=recipe.expand | {fact.rhs}))
        if stage is None:
            raise Unproved(f"no proof of {fact}")
        return stage

    def _layout(self, number: int, recipe: LayoutRecipe) -> LayoutStage | None:
        """The stage with the premises that it needs; ``None`` if all that were found do not suffice."""
        builder = LayoutBuilder(self.knowledge, number, recipe)
        stage = builder.build(title(self.model, self.knowledge.facts[number]))
        if len(stage.symbols) > MAX_FRESH and recipe == LayoutRecipe():
            parts = LayoutRecipe(parts=self._parts(self.knowledge.facts[number]))
            found = self._layout(number, parts) if self._divides(number, parts) else None
            if found is not None:
                return found
        text = LayoutText(self.model, self.knowledge.facts, stage).text("unknown")
        core = self.cores.core(without_comments(text))
        if core is None:
            return None
        core = with_ranges(text, core)
        return trim(replace(stage, premises=tuple(stage.premises[i] for i in core)))

    def _reaches(self, stage: LayoutStage, landmark: Ref) -> bool:
        """Whether a premise speaks of a landmark: else it has to be opened, whoever solves the stage."""
        return any(self.knowledge.facts[n].rhs == landmark for n in _instances(stage))

    def _divides(self, number: int, recipe: LayoutRecipe) -> bool:
        """Whether a stage has an instance of each part, without which they are no proof of the whole.

        A part with a stride has one only by digits of a reshape. A solver would find that out;
        ``--no-solve`` asks none.
        """
        if len(recipe.parts) < 2:
            return False
        stage = LayoutBuilder(self.knowledge, number, recipe).build("")
        return _instances(stage).issuperset(recipe.parts)

    def _parts(self, fact: Fact) -> tuple[int, ...]:
        """Facts about the parts of what is moved on each of which it comes from one place."""

        def here(forms: Sequence[Affine], cell: Cell) -> list[Affine]:
            return [f.substitute(cell.at) for f in forms]

        def follow(cell: Cell) -> None:
            for ref, index in ((fact.lhs, fact.lhs_index), (fact.rhs, fact.rhs_index)):
                at = here(index, cell)
                while isinstance(ref, str) and self.knowledge.moves(ref):
                    _, ref, at = self.knowledge.source(ref, at, cell.ranges)

        try:
            found = explore(Cell.whole(fact.ranges), follow)
        except (Unfollowable, NoDefinition):
            return ()
        pieces = (
            make_fact(
                self.model, cell, fact.lhs, here(fact.lhs_index, cell), fact.rhs, here(fact.rhs_index, cell),
                fact.coef,
            )
            for cell, _ in found
        )  # fmt: skip
        return tuple(self.knowledge.add(p, LayoutRecipe(), relates=False) for p in dict.fromkeys(pieces))

    def _algebra(self, stage: AlgebraStage) -> AlgebraStage:
        text = AlgebraText(self.model, self.knowledge.facts, stage)
        cases = []
        for case in stage.cases:
            core = self.cores.core(without_comments(text.text(case, "unknown")))
            if core is None:
                raise Unproved(
                    f"no proof of {self.knowledge.facts[stage.goal]} from {len(case.premises)} premises"
                )
            cases.append(Case(case.reps, tuple(case.premises[i] for i in core)))
        return replace(stage, cases=tuple(cases))

    def _pointwise(self, ref: Ref) -> bool:
        op = self.model.op(ref)
        return op is not None and op.name in ELEMENTWISE


def _instances(stage: LayoutStage) -> set[int]:
    """The facts of which a stage has an instance."""
    return {n for premise in stage.premises if isinstance(premise, Hyp) for n in premise.facts}


def title(model: Model, fact: Fact) -> str:
    lhs = fact.lhs if isinstance(fact.lhs, str) else fact.lhs.of[0]
    op = model.op(lhs)
    where = f" at {model.plan.sources[op.loc.source]}:{op.loc.line}" if op and op.loc else ""
    text = f"{fact.lhs} follows {fact.rhs}: {op.name if op else 'input'}{where}"
    return "".join(c if " " <= c <= "~" and c != "|" else "?" for c in text)[:200]
