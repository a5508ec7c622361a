"""What elements are made of, and where two of them are made of the same.

The cone of an element is what has to be opened to see it, down to related elements that it reads. Where the
reads of two cones are the same elements, the index of one says at which index the other is to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.plan.affine import ZERO, Affine, Range, divided, fold
from certificates.plan.ops import ELEMENTWISE
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Reduced, Ref, split_ref

from ..cells import Cell, Cut, Digits, Unfollowable, within
from .knowledge import Knowledge
from .ledger import Unrelated
from .solving_facts import solve

#: An index with ``None`` where a coordinate is an integer element, so not affine.
Loose = tuple[Affine | None, ...]
#: Tensors that one cone opens.
MAX_CONE = 64
#: An element behind a related one, if there is one, and how many times it that is.
Related = tuple[tuple[Ref, Loose] | None, Fraction]
#: Offsets of positions that are tried where only a constant in the cone can say what they are.
MAX_OFFSETS = 4
#: Tensors of the specification that are opened to find where two cones end at the same.
MAX_LEVELS = 16


@dataclass
class Cone:
    """What an element is made of: tensors that are opened, and the related elements it reads."""

    opened: set[Ref] = field(default_factory=set)
    reads: list[tuple[Ref, Loose]] = field(default_factory=list)
    #: Of these, numbers that are counted along a dimension.
    counted: set[Ref] = field(default_factory=set)
    offsets: set[Affine] = field(default_factory=set)
    #: The product of the numbers that scale what is opened.
    scale: Fraction = Fraction(1)

    def read(self, target: tuple[Ref, Loose], op: Op | None) -> None:
        """Note a related element of a tensor that this op makes."""
        self.reads.append(target)
        if op is not None and op.name == "iota":
            self.counted.add(target[0])


class Cones:
    """Opens elements down to what is known of them."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model

    def open(
        self,
        ref: Ref,
        at: Loose,
        ranges: Mapping[str, Range],
        cone: Cone,
        *,
        first: bool = False,
        stop: Container[Ref] | None = None,
    ) -> None:
        """Add an element to a cone: a read if it is related (with ``stop``, to one of these), else opened."""
        op = self.model.op(ref)
        value = self.model.literal(ref)
        if value is not None or (op is not None and op.name == "iota"):
            if isinstance(value, Fraction) and value and self.model.tensors.type(ref).sort == "Int":
                cone.offsets.add(Affine(int(value)))
            elif isinstance(value, Affine):
                axes = self.model.tensors.mesh_axes(ref)
                here = {a: f for a, f in zip(axes, at, strict=False) if f is not None}
                cone.offsets.add(value.substitute(here))
            return
        if not first:
            target, coef = self._related(ref, at, ranges)
            if target is not None and isinstance(self.model.literal(target[0]), Fraction):
                cone.opened.add(ref)
                return
            cone.scale *= coef if self.model.tensors.type(ref).sort == "Real" else 1
            if target is not None and (stop is None or target[0] in stop or self.model.op(target[0]) is None):
                cone.read(target, self.model.op(target[0]))
                return
            if target is not None:
                self.open(*target, ranges, cone, first=True, stop=stop)
                return
        if len(cone.opened) > MAX_CONE:
            raise Unfollowable(f"{ref}: cone over {MAX_CONE} tensors")
        cone.opened.add(ref)
        self.k.tries.step()
        if isinstance(ref, Reduced):
            order = list(self.model.plan.mesh.axes)
            member = ref.of[0]
            owner = split_ref(member)[0]
            cone.opened.update(ref.of)
            inner = dict(ranges)
            full = list(at)
            for a in sorted(ref.axes, key=order.index):
                name = f"{owner}.{a}"
                inner[name] = self.model.plan.by_class[owner].box[a]
                full.insert(order.index(a), Affine.symbol(name))
            for m in ref.of:
                if m != member:
                    self._open_all(m, cone)
            try:
                first = member not in self.k.by_lhs
                self.open(member, tuple(full), inner, cone, first=first, stop=stop)
            except (Cut, Digits) as error:
                if error.symbol in ranges:
                    raise
                raise Unfollowable(f"{member}: its cone depends on the rank") from error
            return
        op = self.model.op(ref)
        if op is None:
            raise Unrelated(ref)
        ins = self.model.operands(ref)
        mesh = len(self.model.tensors.mesh_axes(ref))
        if op.name == "gather":
            axis, batch = op.integer("axis"), op.integer("batch_dims")
            free = len(self.model.tensors.type(ins[1]).shape) - batch
            body = at[mesh:]
            self.open(ins[1], (*at[:mesh], *body[:batch], *body[axis : axis + free]), ranges, cone, stop=stop)
            self.open(ins[0], (*at[:mesh], *body[:axis], None, *body[axis + free :]), ranges, cone, stop=stop)
        elif op.name in ELEMENTWISE and ref not in self.k.hops:
            cone.scale *= _factor(op, [_number(self.k, v, at, ranges) for v in ins])
            for v in ins:
                self.open(v, at, ranges, cone, stop=stop)
        else:
            self._move(ref, at, ranges, cone, stop)

    def _open_all(self, ref: str, cone: Cone) -> None:
        """Open the cone of a member on another class without following indices."""
        work = [ref]
        while work:
            v = work.pop()
            if (v in cone.opened and v != ref) or v in self.k.by_lhs or self.model.op(v) is None:
                continue
            cone.opened.add(v)
            if len(cone.opened) > MAX_CONE:
                raise Unfollowable(f"{ref}: cone over {MAX_CONE} tensors")
            work += self.model.operands(v)

    def _move(
        self, ref: Ref, at: Loose, ranges: Mapping[str, Range], cone: Cone, stop: Container[Ref] | None
    ) -> None:
        if any(f is None for f in at):
            raise Unfollowable(f"{ref}: data movement of an element at an integer index")
        if isinstance(ref, Reduced):
            raise Unrelated(ref)
        scale, current, index = self.k.source(ref, [f for f in at if f is not None], ranges)
        if current == ref:
            raise Unrelated(ref)
        cone.scale *= scale
        self.open(current, tuple(index), ranges, cone, stop=stop)

    def _related(self, ref: Ref, at: Loose, ranges: Mapping[str, Range]) -> Related:
        """The atom element behind a related element, and how many times it that is."""
        one = Fraction(1)
        if None not in at:
            try:
                reading = self.k.read(ref, [f for f in at if f is not None], ranges)
            except Unrelated:
                return None, one
            return (reading.target, tuple(reading.at)), reading.coef
        if ref not in self.k.by_lhs and self.k.is_atom(ref):
            return (ref, at), one
        for number in self.k.facts_for(ref):
            fact = self.k.facts[number]
            values = _coordinates(fact, at, ranges)
            if values is None:
                continue  # it is about another piece
            loose = tuple(
                fold(form.substitute(values), ranges) if set(form.symbols) <= set(values) else None
                for form in fact.rhs_index
            )
            return (fact.rhs, loose), fact.coef
        return None, one


@dataclass(frozen=True)
class AllBut(Container[Ref]):
    """Cones end at each related tensor but these."""

    refs: frozenset[Ref]

    def __contains__(self, ref: object) -> bool:
        return ref not in self.refs


def down_to_common(
    mine: Callable[[AllBut], Cone], theirs: Callable[[AllBut], Cone], order: Mapping[Ref, int]
) -> tuple[Cone, Cone]:
    """Cones of an element of the specification and one of a rank that end at the same tensors.

    A rank's tensor may be one that the specification makes of others only after it has gone another way
    (`logsumexp` beside `log_softmax`): of what one side alone ends at, the latest is opened. ``order`` says
    where the specification makes its tensors, ``mine`` and ``theirs`` give the cone that ends at some.

    Raises:
        Unfollowable: they end at the same as they are, or never.
    """
    deeper: frozenset[Ref] = frozenset()
    for _ in range(MAX_LEVELS):
        both = mine(AllBut(deeper)), theirs(AllBut(deeper))
        here, there = ({t for t, _ in cone.reads} for cone in both)
        if here <= there:
            if not deeper:
                break
            return both
        latest = max(here ^ there, key=lambda t: order.get(t, -1))
        if latest not in order or latest in deeper:
            break
        deeper |= {latest}
    raise Unfollowable("cones that do not end at the same tensors")


def positions(
    known: dict[str, Affine], missing: Sequence[str], cone: Cone, index: Sequence[Affine]
) -> list[dict[str, Affine]]:
    """Index symbols; one that no read determines is a coordinate of the plan's, with an offset."""
    if not missing:
        return [known]
    if len(missing) > 1:
        return []
    taken = set(known.values())
    offsets = sorted(cone.offsets, key=str)[:MAX_OFFSETS]
    moved = [f + offset for f in index if not f.is_const for offset in (Affine(), *offsets)]
    return [known | {missing[0]: form} for form in dict.fromkeys(moved) if form not in taken]


def matches(
    mine: Cone, theirs: Cone, ranges: Mapping[str, Range], splits: list[Cut]
) -> Iterator[dict[str, Affine]]:
    """Values of the specification's index symbols by all its reads, and then without what is counted: a rank
    may count from another number."""
    others = [(t, at) for t, at in mine.reads if t not in mine.counted]
    for reads in (mine.reads, others) if len(others) < len(mine.reads) else (mine.reads,):
        found = match(reads, theirs, ranges, splits)
        if found is not None:
            yield found


def match(
    reads: Sequence[tuple[Ref, Loose]], theirs: Cone, ranges: Mapping[str, Range], splits: list[Cut]
) -> dict[str, Affine] | None:
    """Values of the specification's index symbols under which each of its reads is one of the cone's."""
    known: dict[str, Affine] = {}
    for target, loose in reads:
        for other, at in theirs.reads:
            trial = dict(known)
            if other == target and _unify(loose, at, trial, ranges):
                known = trial
                break
        else:
            splits += [c for other, at in theirs.reads if other == target for c in _apart(loose, at, ranges)]
            return None
    return known


def _apart(mine: Loose, theirs: Loose, ranges: Mapping[str, Range]) -> Iterator[Cut]:
    """Where a coordinate that is a number on one side becomes it on the other, as on the rank that has it."""
    for form, target in zip(mine, theirs, strict=True):
        if form is None or target is None or not form.is_const or target.is_const:
            continue
        try:
            within(target - form, 0, 1, ranges)
        except Cut as split:
            yield split
        except Unfollowable:
            continue


def _unify(mine: Loose, theirs: Loose, known: dict[str, Affine], ranges: Mapping[str, Range]) -> bool:
    for form, target in zip(mine, theirs, strict=True):
        if form is None or target is None:
            continue
        if set(form.symbols) <= set(known):
            if form.substitute(known) != target:
                return False
            continue
        for symbol, value in _solved(form, target, known, ranges).items():
            if known.setdefault(symbol, value) != value:
                return False
    return True


def _solved(
    form: Affine, target: Affine, known: Mapping[str, Affine], ranges: Mapping[str, Range]
) -> dict[str, Affine]:
    """Values of a form's symbols with which it is the target, as its digits; none if there are no such."""
    rest, found = target - form.const, dict[str, Affine]()
    for symbol, coef in sorted(form.terms, key=lambda t: -t[1]):
        value = known.get(symbol)
        if value is None and coef == 1:
            value = found[symbol] = rest
        elif value is None:
            parts = divided(rest, coef, ranges) if coef > 0 else None
            if parts is None:
                return {}
            value = found[symbol] = parts[0]
        rest = rest - value.scale(coef)
    return found if rest == ZERO else {}


def is_known(knowledge: Knowledge, spec: Ref) -> bool:
    """Is all of a tensor another one? Of a mask, the later rows may be those of another mask."""
    facts = knowledge.by_lhs.get(spec, ())
    return bool(facts) and all(knowledge.facts[n].rhs != spec for n in facts)


def stands(
    knowledge: Knowledge,
    spec: Ref,
    cell: Cell,
    full: Mapping[str, Affine],
    ranges: Mapping[str, Range],
    splits: list[Cut],
) -> bool:
    """Is an element of the specification, with ``full`` in place of the cell's symbols, in that cell, and no
    other one? If so for some only, ``splits`` says which."""
    out = tuple(f.substitute(full) for f in cell.at.values())
    try:
        if not all(within(full[s], *r, ranges) for s, r in cell.ranges.items() if s in full):
            return False
        if spec not in knowledge.by_lhs:
            return True
        reading = knowledge.read(spec, list(out), ranges)
    except Cut as split:
        splits.append(split)
        return False
    except (Unrelated, Unfollowable):
        return False
    return reading.target == spec and tuple(reading.at) == out


def _coordinates(fact: Fact, at: Loose, ranges: Mapping[str, Range]) -> dict[str, Affine] | None:
    """The symbols of a fact that the known coordinates of an element determine; ``None`` if it has none such.

    Raises a split where it has elements of a part of the box.
    """
    known = [(form, target) for form, target in zip(fact.lhs_index, at, strict=True) if target is not None]
    ranged = {s: fact.ranges[s] for form, _ in known for s in form.symbols}
    try:
        return solve([form for form, _ in known], ranged, [target for _, target in known], ranges)
    except Unfollowable:
        return {}


def _number(known: Knowledge, ref: Ref, at: Loose, ranges: Mapping[str, Range]) -> object:
    """The number that an element is, if it is one."""
    try:
        reading = known.read(ref, [f for f in at if f is not None], ranges) if None not in at else None
    except Unrelated:
        reading = None
    value = known.model.literal(ref if reading is None else reading.target)
    return value * reading.coef if reading is not None and isinstance(value, Fraction) else value


def _factor(op: Op, values: Sequence[object]) -> Fraction:
    """What an op multiplies by, as far as its operands are numbers: a factor of what it is a part of."""
    factor = Fraction(1)
    if op.type.sort == "Real" and op.name == "select":
        some = [v for v in values[1:] if v != 0]
        return some[0] if len(some) == 1 and isinstance(some[0], Fraction) else factor
    if op.type.sort == "Real" and op.name in ("multiply", "divide"):
        for i, value in enumerate(values):
            if isinstance(value, Fraction) and value:
                factor *= 1 / value if i and op.name == "divide" else value
    return factor
