"""Facts about moved tensors: from those about the tensors they come from, of one rank and across ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .joining import join
from .ledger import LayoutRecipe, Lift, Unrelated
from .readings import Readings
from .solving_facts import literal_ref, make_fact

#: A factor, the tensor that a member is moved from, and the index there.
Source = tuple[Fraction, Ref, list[Affine]]


def moved_facts(known: Readings, ref: str) -> list[int]:
    """Facts of the parts whose sources are related; padding, say, stays open."""

    def compute(cell: Cell) -> tuple[Fraction, Ref, tuple[Affine, ...]] | None:
        coef, current, at = known.source(ref, list(cell.at.values()), cell.ranges)
        try:
            reading = known.read(current, at, cell.ranges)
        except Unrelated:
            return None
        value = known.model.literal(reading.target)
        if isinstance(value, Fraction) and any(c < 0 for f in reading.at for _, c in f.terms):
            # Where in a literal does not matter, and a stage has no pieces that run downwards.
            sort = known.model.tensors.type(reading.target).sort
            return coef * reading.coef, literal_ref(sort, value), ()
        return coef * reading.coef, reading.target, reading.at

    whole = known.full_index(ref)
    pieces = [
        make_fact(known.model, cell, ref, tuple(cell.at.values()), found[1], found[2], found[0])
        for cell, found in explore(whole, compute)
        if found is not None
    ]
    return [known.add(fact, LayoutRecipe()) for fact in join(known.model, pieces)]


def links(known: Readings, ref: str) -> list[int]:
    """Facts that tie a moved plan tensor to the unmoved plan tensors of its own rank it comes from.

    Raises ``Unfollowable`` where it crosses ranks.
    """
    mesh = len(known.model.tensors.mesh_axes(ref))

    def compute(cell: Cell) -> tuple[Fraction, Ref, tuple[Affine, ...]]:
        index = list(cell.at.values())
        coef, current, at = known.source(ref, index, cell.ranges, across=False)
        if isinstance(current, Reduced) or current == ref or at[:mesh] != index[:mesh]:
            raise Unfollowable(f"{ref} crosses ranks")
        return coef, current, tuple(at)

    pieces = [
        make_fact(known.model, cell, ref, tuple(cell.at.values()), current, at, coef)
        for cell, (coef, current, at) in explore(known.full_index(ref), compute)
    ]
    return [known.add(fact, LayoutRecipe(), relates=False) for fact in join(known.model, pieces)]


def reduced_facts(known: Readings, ref: Reduced) -> list[int]:
    """Relate a reduced tensor through the data movement of its members."""
    model, whole = known.model, known.full_index(ref)
    extra: dict[str, Range] = {}
    for m in ref.of:
        owner = split_ref(m)[0]
        extra |= {f"{owner}.{a}": model.plan.by_class[owner].box[a] for a in ref.axes}

    def compute(cell: Cell) -> tuple[Fraction, Ref, tuple[Affine, ...], list[Source]] | None:
        kept, sources = _sources(known, ref, cell, [cell.at[s] for s in whole.ranges])
        if kept is None:
            return None
        coef = sources[0][0]
        family = {split_ref(g)[0]: g for _, g, _ in sources if isinstance(g, str)}
        inner = model.reduced_of(next(iter(family)), family, ref.axes, ref.kind)
        try:
            if inner != ref and (inner in known.by_lhs or known.facts_for(inner)):
                reading = known.read(inner, kept, cell.ranges)
                return coef * reading.coef, reading.target, reading.at, sources
            return *_replicated(known, ref, coef, sources, cell), sources
        except Unrelated:
            return None

    pieces: list[tuple[Fact, Cell, list[Source]]] = []
    for cell, found in explore(Cell.whole(dict(whole.ranges) | extra), compute):
        if found is None:
            continue
        coef, target, at, sources = found
        if ref.kind != "add" and coef <= 0:
            raise Unfollowable(f"{ref}: {ref.kind} under a negative factor")
        left = tuple(cell.at[s] for s in whole.ranges)
        pieces.append((make_fact(model, cell, ref, left, target, at, coef), cell, sources))
    numbers = []
    for fact, cell, sources in pieces:
        lifts: list[int] = []
        for m, (factor, g, source) in zip(ref.of, sources, strict=True):
            if g == m:
                continue
            here = _of_member(known, ref, m, [cell.at[s] for s in whole.ranges])
            link = make_fact(model, cell, m, here, g, source, factor)
            lifts.append(known.add(link, LayoutRecipe(), relates=False))
        if not lifts and sources[0][1] in ref.of:
            readings = [known.read(g, place, cell.ranges) for _, g, place in sources]
            lifts = [r.fact for r in readings if r.fact is not None]
        recipe = LayoutRecipe(lifts=(Lift(tuple(lifts), ref.axes, ref.kind),) if lifts else ())
        numbers.append(known.add(fact, recipe))
    return numbers


def sums_of_moved(known: Readings, results: Sequence[str]) -> Iterator[Reduced]:
    """Sums over ranks that are known of what results are moved from, as sums of these results.

    So a gradient that is cast before it is handed on is a share of a sum like the gradient itself, and so are
    gradients that are handed on behind each other.
    """
    moved: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        refs = _parts(known, result)
        if refs and refs != (result,):
            moved.setdefault(refs, []).append(result)
    for refs in moved:
        for reduced in _summed_over(known, refs):
            alike = [_alike(known, ref, reduced) for ref in refs]
            members = list(zip(*(other.of for other in alike if other is not None), strict=True))
            if None not in alike and members[0] == refs and all(m in moved for m in members):
                for of in zip(*(moved[m] for m in members), strict=False):
                    yield Reduced(reduced.kind, reduced.axes, of)


def _summed_over(known: Readings, refs: Sequence[str]) -> list[Reduced]:
    """One known sum over ranks, of any of some tensors, for all axes over which there is one.

    Of what was summed over some of the axes of a known sum, the rest is to be summed over.
    """
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Reduced] = {}

    def add(reduced: Reduced) -> None:
        owners = tuple(split_ref(m)[0] for m in reduced.of)
        found.setdefault((reduced.kind, reduced.axes, owners), reduced)

    for ref in refs:
        for reduced in known.partials.get(ref, ()):
            add(reduced)
        op = known.model.op(ref)
        if op is None or op.name != "all_reduce":
            continue
        try:
            inner = known.model.reduced(ref, op.text("kind"))
        except NoDefinition:  # a group that is no product of mesh axes
            continue
        for outer in known.partials.get(known.model.operands(ref)[0], ()):
            rest = tuple(a for a in outer.axes if a not in inner.axes)
            met = [_met(known, split_ref(m)[0], op.integer("seq")) for m in outer.of]
            whole = outer.kind == inner.kind and len(rest) + len(inner.axes) == len(outer.axes)
            if rest and whole and all(met):
                add(Reduced(outer.kind, rest, tuple(met)))
    return list(found.values())


def _alike(known: Readings, ref: str, reduced: Reduced) -> Reduced | None:
    """The sum of a tensor over the ranks over which another one is summed.

    What is summed over some axes already is a summand over the others, whoever asked for that before.
    """
    owners = [split_ref(m)[0] for m in reduced.of]
    for other in known.partials.get(ref, ()):
        same = (other.kind, other.axes) == (reduced.kind, reduced.axes)
        if same and [split_ref(m)[0] for m in other.of] == owners:
            return other
    op = known.model.op(ref)
    if op is None or op.name != "all_reduce" or op.text("kind") != reduced.kind:
        return None
    found = [_met(known, owner, op.integer("seq")) for owner in owners]
    return None if "" in found else Reduced(reduced.kind, reduced.axes, tuple(found))


def _met(known: Readings, owner: str, seq: int) -> str:
    """The result of a rendezvous in a class; nothing if it takes no part."""
    ops = known.model.plan.by_class[owner].program.ops
    return next(
        (f"{owner}:{op.out}" for op in ops if op.name == "all_reduce" and op.integer("seq") == seq), ""
    )


def moved_from(known: Readings, ref: str) -> str:
    """What a tensor is moved from on its own rank, without anything else."""
    while known.moves(ref) and known.model.ops[ref].name not in COLLECTIVES | MESSAGES:
        ins = known.below(ref)
        if len(ins) != 1:
            break
        ref = ins[0]
    return ref


def _parts(known: Readings, result: str) -> tuple[str, ...]:
    """What a tensor is moved from on its own rank, part behind part; but for numbers."""
    found, work = list[str](), [result]
    while work:
        ref = moved_from(known, work.pop())
        op = known.model.op(ref)
        if op is not None and op.name == "concatenate" and known.moves(ref):
            work += reversed(known.model.operands(ref))
        elif known.model.literal(ref) is None:
            found.append(ref)
    return tuple(found)


def _of_member(known: Readings, ref: Reduced, member: str, index: Sequence[Affine]) -> list[Affine]:
    """The index of a member of a reduced tensor, at all ranks, from an index of that tensor."""
    axes, owner, at = list(known.model.plan.mesh.axes), split_ref(member)[0], list(index)
    for a in ref.axes:
        at.insert(axes.index(a), Affine.symbol(f"{owner}.{a}"))
    return at


def _sources(
    known: Readings, ref: Reduced, cell: Cell, index: Sequence[Affine]
) -> tuple[list[Affine] | None, list[Source]]:
    """Where the members of a reduced tensor come from, and the index that these have in common, if any."""
    axes = list(known.model.plan.mesh.axes)
    sources: list[Source] = []
    kept: list[Affine] | None = None
    for m in ref.of:
        owner = split_ref(m)[0]
        mine = {f"{owner}.{a}" for a in ref.axes}
        if any(cell.at[s] != Affine.symbol(s) for s in mine):
            raise Unfollowable(f"{ref}: the movement of {m} depends on the rank")
        at = _of_member(known, ref, m, index)
        coef, current, source = known.source(m, at, cell.ranges, across=False)
        same = [source[i] == at[i] for i, a in enumerate(axes) if a in ref.axes]
        if isinstance(current, Reduced) or not all(same):
            raise Unfollowable(f"{ref}: {m} crosses ranks")
        rest = [f for i, f in enumerate(source) if i >= len(axes) or axes[i] not in ref.axes]
        if any(s in mine for f in rest for s in f.symbols):
            raise Unfollowable(f"{ref}: the movement of {m} depends on the rank")
        if kept is not None and rest != kept:
            return None, sources
        kept = rest
        sources.append((coef, current, source))
    if kept is None or len({c for c, _, _ in sources}) != 1:
        raise Unfollowable(f"{ref}: members are scaled differently")
    return kept, sources


def repeated(known: Readings, ref: Reduced) -> list[int]:
    """Sums over fewer axes that are equal on the ranks of the others: over all axes, so many times it."""
    boxes = known.model.plan.by_class[split_ref(ref.of[0])[0]].box
    numbers = []
    for inner in known.partials.get(ref.of[0], ()):
        rest = tuple(a for a in ref.axes if a not in inner.axes)
        if inner.kind != ref.kind or inner.of != ref.of or len(rest) + len(inner.axes) != len(ref.axes):
            continue
        count = math.prod(boxes[a][1] - boxes[a][0] for a in rest) if ref.kind == "add" else 1
        for number in known.by_lhs[inner]:
            fact = known.facts[number]
            whole = all(fact.ranges.get(a) == boxes[a] for a in rest)
            if not whole or any(a in f.symbols for f in fact.rhs_index for a in rest):
                continue
            at = [f for f in fact.lhs_index if f.symbols[:1] not in {(a,) for a in rest}]
            cell = Cell({s: (lo, hi) for s, lo, hi in fact.symbols if s not in rest}, {})
            wide = make_fact(known.model, cell, ref, at, fact.rhs, fact.rhs_index, fact.coef * count)
            numbers.append(known.add(wide, LayoutRecipe(lifts=(Lift((number,), rest, ref.kind),))))
    return numbers


def _replicated(
    known: Readings, ref: Reduced, coef: Fraction, sources: Sequence[Source], cell: Cell
) -> tuple[Fraction, Ref, tuple[Affine, ...]]:
    """Members that all equal one specification tensor: ``n`` times it (sums), or it (max, min)."""
    found: set[tuple[Fraction, Ref, tuple[Affine, ...]]] = set()
    for _, g, place in sources:
        reading = known.read(g, place, cell.ranges)
        if any("." in s for f in reading.at for s in f.symbols):
            raise Unrelated(ref)
        found.add((reading.coef, reading.target, reading.at))
    if len(found) != 1 or any(g not in ref.of for _, g, _ in sources):
        raise Unrelated(ref)
    factor, target, at = found.pop()
    count = math.prod(known.model.plan.mesh.axes[a] for a in ref.axes) if ref.kind == "add" else 1
    return coef * factor * count, target, at
