"""Recipes of algebra stages: which facts are used where, and what is unfolded.

What finds a relation writes down how it may be proved; the staging turns that into premises. A recipe is a
guess like the fact that it is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Fact, Ref

from ..cells import Cell, Unfollowable
from .knowledge import Knowledge
from .ledger import LayoutRecipe
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]

#: Ranks of one axis that a sum may be taken apart into.
MAX_RANKS = 32


@dataclass(frozen=True)
class Instance:
    """A fact used at symbolic positions; ``defines`` says which side it substitutes."""

    fact: int
    values: Forms
    defines: str = "lhs"


@dataclass(frozen=True)
class Use:
    """An element that a stage speaks of, at symbolic positions."""

    ref: Ref
    at: Forms


@dataclass(frozen=True)
class Pair:
    """Operands of both sides that correspond, with the facts and atoms by which they do: ``plan = coef *
    spec``.
    """

    plan: Use
    spec: Use
    coef: Fraction
    instances: tuple[Instance, ...]
    atoms: tuple[Use, ...]


@dataclass(frozen=True)
class AlgebraRecipe:
    """All that an algebra stage needs, over cell symbols: what is unfolded, which facts, where.

    ``roots`` and ``field`` are laws that it may need besides those of rings.
    """

    expand: frozenset[Ref]
    instances: tuple[Instance, ...]
    uses: tuple[Use, ...]
    ranges: Mapping[str, Range]
    goal: Mapping[str, Affine]
    pairs: tuple[Pair, ...] = ()
    roots: bool = False
    field: bool = False


def tied(
    knowledge: Knowledge,
    fact: Fact,
    at: Forms,
    ranges: Mapping[str, Range],
    expand: frozenset[Ref] = frozenset(),
) -> Instance:
    """A fact of data movement, recorded, and its instance at the index that it was made for."""
    number = knowledge.add(fact, LayoutRecipe(expand), relates=False)
    values = solve(fact.lhs_index, fact.ranges, at, ranges)
    if values is None:
        raise Unfollowable(f"{fact.lhs}: a fact does not cover its own cell")
    return Instance(number, tuple(values[s] for s, _, _ in fact.symbols))


def by_rank(recipe: AlgebraRecipe, axis: str) -> AlgebraRecipe | None:
    """The recipe with the ranks of a summed mesh axis one by one; ``None`` if it is not summed.

    Shards of several classes may not run over one contiguous range together, but do for one rank of an
    axis.
    """
    moving = {s: r for s, r in recipe.ranges.items() if s.endswith(f".{axis}") and r[1] - r[0] > 1}
    used = {x for f in recipe.goal.values() for x in f.symbols}
    if not moving or set(moving) & used or max(hi - lo for lo, hi in moving.values()) > MAX_RANKS:
        return None
    instances, uses = recipe.instances, recipe.uses
    for symbol, (lo, hi) in moving.items():
        values = [{symbol: Affine(v)} for v in range(lo, hi)]

        def at(forms: Forms, value: Mapping[str, Affine]) -> Forms:
            return tuple(f.substitute(value) for f in forms)

        instances = tuple(
            dict.fromkeys(replace(i, values=at(i.values, v)) for i in instances for v in values)
        )
        uses = tuple(dict.fromkeys(Use(u.ref, at(u.at, v)) for u in uses for v in values))
    ranges = {s: r for s, r in recipe.ranges.items() if s not in moving}
    return replace(recipe, instances=instances, uses=uses, ranges=ranges, pairs=())


def upwards_only(knowledge: Knowledge, recipe: AlgebraRecipe) -> AlgebraRecipe:
    """The recipe with facts of one rank each in place of those that run downwards along the ranks.

    From the specification's side, trees of a stage find an element of a fact by division, which needs steps
    upwards. A zigzag of pieces of a sequence runs down in its second half.
    """
    instances = []
    for instance in recipe.instances:
        fact = knowledge.facts[instance.fact]
        values = {s: form for (s, _, _), form in zip(fact.symbols, instance.values, strict=True)}
        down = {s for form in (*fact.lhs_index, *fact.rhs_index) for s, coef in form.terms if coef < 0}
        fixed = {s: values[s] for s in down if values[s].is_const}
        if fixed:
            ranges = {s: (v.const, v.const + 1) for s, v in fixed.items()}
            here = Cell({**fact.ranges, **ranges}, {})
            made = make_fact(
                knowledge.model, here, fact.lhs, fact.lhs_index, fact.rhs, fact.rhs_index, fact.coef
            )
            place = tuple(form.substitute(values) for form in fact.lhs_index)
            instance = replace(tied(knowledge, made, place, recipe.ranges), defines=instance.defines)
        instances.append(instance)
    return replace(recipe, instances=tuple(dict.fromkeys(instances)))


def direct(knowledge: Knowledge, recipe: AlgebraRecipe) -> AlgebraRecipe:
    """The recipe with operands tied to operands by facts of their own, not through the tensors both
    come from.

    Trees of an algebra stage cannot cut the axes of a common source and join others of it; its layout
    stage can.
    """
    instances, uses = dict.fromkeys(recipe.instances), dict.fromkeys(recipe.uses)
    for pair in recipe.pairs:
        for instance in pair.instances:
            instances.pop(instance, None)
        for atom in pair.atoms:
            uses.pop(atom, None)
    cell = Cell(recipe.ranges, {})
    for pair in recipe.pairs:
        uses |= {pair.plan: None, pair.spec: None}
        fact = make_fact(
            knowledge.model, cell, pair.plan.ref, pair.plan.at, pair.spec.ref, pair.spec.at, pair.coef
        )
        instances[tied(knowledge, fact, pair.plan.at, recipe.ranges)] = None
    return replace(recipe, instances=tuple(instances), uses=tuple(uses), pairs=())
