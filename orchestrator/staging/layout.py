"""Premises of layout stages: unfold both sides of the goal at symbolic indices down to known facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from certificates.plan.affine import ZERO, Affine, Range, divided, fold
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from certificates.proof.stages import (
    BoundIndex,
    BoundSymbol,
    BoundValue,
    Def,
    EvidentRange,
    Hyp,
    InputRange,
    LayoutPremise,
    LayoutStage,
)
from smtlib_emit import regroup
from smtlib_emit.errors import NoDefinition
from smtlib_emit.layout import LayoutText, lift
from smtlib_emit.model import Model
from smtlib_emit.sexp import Sexp

from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe, Lift
from .digits import Quotients, located

Index = tuple[Affine, ...]
MAX_PREMISES = 3000
#: Values of a digit that instances of a fact may be listed for.
MAX_DIGITS = 32
#: Ops on integers and booleans that layout stages define.
POSITIONS = frozenset(
    (
        *("add", "subtract", "negate", "compare", "select", "and", "or", "not", "maximum", "minimum"),
        *("convert", "multiply"),
    )
)


class LayoutBuilder:
    """Unfolds one goal. Fresh symbols come from regroupings that do not resolve, from quotients of
    positions, and from integer elements.
    """

    def __init__(self, knowledge: Knowledge, number: int, recipe: LayoutRecipe) -> None:
        self.k, self.model, self.goal = knowledge, knowledge.model, knowledge.facts[number]
        self.number, self.recipe = number, recipe
        self.symbols: list[tuple[str, int | None, int | None]] = []
        self.ranges: dict[str, Range] = self.goal.ranges
        #: Where symbols can lie, by equations of positions too. It tells only what need not be looked into:
        #: the checker knows the ranges that symbols are declared with.
        self.within = dict(self.ranges)
        self.premises: list[LayoutPremise] = []
        self.seen: set[tuple[Ref, Index]] = set()
        self.values: dict[tuple[Ref, Index], str] = {}
        self.quotients = Quotients(self.model, self.fresh, self.premises)

    def build(self, title: str) -> LayoutStage:
        """All premises that may be needed, symbol ranges last; minimisation removes the others."""
        for sums in self.recipe.lifts:
            self._sum_congruence(sums)
        if self.recipe.parts:
            self._instances(self.recipe.parts, self.goal.lhs_index)
            if self.goal.rhs in self.recipe.expand:
                self.unfold(self.goal.rhs, self.goal.rhs_index, self.number)
            bounds = [BoundSymbol(s) for s in self.ranges]
            return LayoutStage(self.number, title, tuple(self.symbols), (*self.premises, *bounds))
        folded = {s: r for s, r in self.ranges.items() if s not in _sent_along(self.model, self.goal)}
        for ref, index in ((self.goal.lhs, self.goal.lhs_index), (self.goal.rhs, self.goal.rhs_index)):
            self.unfold(ref, [fold(f, folded) for f in index], self.number)
        bounds = [BoundSymbol(s) for s in self.ranges]
        return LayoutStage(self.number, title, tuple(self.symbols), (*self.premises, *bounds))

    def _sum_congruence(self, sums: Lift) -> None:
        """Facts about the members, added up over ranks, at the goal's index; then what the sum is."""
        fact, _, rhs, _ = lift(self.model, [self.k.facts[i] for i in sums.facts], sums.axes, sums.kind)

        def outside(ref: Ref, index: Index) -> Index:
            mesh = self.model.tensors.mesh_axes(ref)
            return tuple(f for i, f in enumerate(index) if i >= len(mesh) or mesh[i] not in sums.axes)

        free = {s: (lo, hi) for s, lo, hi in fact.symbols if s not in sums.axes}
        values = self.resolve(outside(fact.lhs, fact.lhs_index), free, self.goal.lhs_index)
        if values is None:
            return
        at = tuple(values[s] for s in free)
        self.premises.append(Hyp(sums.facts, at, sums.axes, sums.kind))
        index = outside(fact.rhs, fact.rhs_index) if rhs != fact.rhs else fact.rhs_index
        self.unfold(rhs, tuple(f.substitute(values) for f in index), self.number)

    def fresh(self, letter: str, lo: int | None, hi: int | None) -> Affine:
        name = f"{letter}{sum(s.startswith(letter) for s, _, _ in self.symbols)}"
        self.symbols.append((name, lo, hi))
        if lo is not None and hi is not None:
            self.ranges[name] = self.within[name] = (lo, hi)
        return Affine.symbol(name)

    def unfold(self, ref: Ref, index: Sequence[Affine], goal: int | None = None) -> None:
        """Add the premises that say what ``ref[index]`` is."""
        at = tuple(index)
        if (ref, at) in self.seen or not self.possible(ref, at):
            return
        self.seen.add((ref, at))
        if len(self.premises) > MAX_PREMISES:
            raise NoDefinition(f"{self.goal.lhs}: more than {MAX_PREMISES} premises")
        if self.model.literal(ref) is not None or self._stands_for_itself(ref):
            return
        used = [n for n in self.recipe.used if self.k.facts[n].lhs == ref]
        if goal is None and used and self._instances(used, at):
            return
        whole = not self.k.moves(ref) or ref in self.k.restated
        if goal is None and ref not in self.recipe.expand and whole and self.use_facts(ref, at):
            return
        if isinstance(ref, Reduced):
            if ref in self.recipe.expand:
                self.premises.append(Def(ref, at))
                self.list_members(ref, at)
            elif goal is not None:
                self.use_facts(ref, at)
            return
        if ref in self.k.hops and self.number not in self.k.hops[ref] and ref not in self.recipe.expand:
            self._instances(self.k.hops[ref], at)
            return
        op = self.model.op(ref)
        if op is not None and op.name == "iota":
            return
        if op is None:
            name = split_ref(ref)[1]
            if ref.startswith("s:") and name in self.model.plan.ranges:
                self.premises.append(InputRange(name, at))
            elif goal is not None:
                self.use_facts(ref, at)
            return
        if goal is not None and not self.k.moves(ref) and ref not in self.recipe.expand:
            self.use_facts(ref, at)
            return
        if self.k.moves(ref) or ref in self.recipe.expand or self.position(ref):
            self.define(ref, at)
        elif op.type.sort == "Int" and self.model.bounds.of(*split_ref(ref)) is not None:
            self.premises.append(EvidentRange(ref, at))

    def _stands_for_itself(self, ref: Ref) -> bool:
        """A landmark that the goal speaks of as a whole."""
        return ref in self.k.landmarks and ref == self.goal.rhs and ref not in self.recipe.expand

    def position(self, ref: Ref) -> bool:
        """Integers and masks of the specification: opened down to the inputs, whose ranges may be needed."""
        op = self.model.op(ref)
        if not self.recipe.expand or op is None or not isinstance(ref, str) or not ref.startswith("s:"):
            return False
        operands = self.model.operands(ref)
        sorts = {op.type.sort, *(self.model.tensors.type(v).sort for v in operands)}
        if op.name == "multiply" and not any(self.model.literal(v) is not None for v in operands):
            return False  # no linear term
        return op.name in POSITIONS and "Real" not in sorts

    def possible(self, ref: Ref, at: Index) -> bool:
        """Whether the element can exist: no coordinate is evidently out of range."""
        for form, (lo, hi) in zip(at, self.model.tensors.ranges(ref), strict=True):
            if all(s in self.ranges for s in form.symbols):
                first, last = form.interval(self.within)
                if last < lo or first >= hi:
                    return False
        return True

    def use_facts(self, ref: Ref, at: Index) -> bool:
        """Add instances of the facts about a tensor, of what was restated too; whether there were any."""
        parts = self.k.restated.get(ref, ())
        return self._instances(parts if self.number in parts else [*self.k.facts_for(ref), *parts], at)

    def _instances(self, numbers: Sequence[int], at: Index) -> bool:
        used = False
        for number in self.k.near(numbers, at, self.ranges):
            if number == self.number:
                continue
            fact = self.k.facts[number]
            for values in self._solutions(fact, at):
                used = True
                self.premises.append(Hyp((number,), tuple(values[s] for s, _, _ in fact.symbols)))
                if number not in self.recipe.parts or fact.rhs != self.goal.rhs:
                    self.unfold(fact.rhs, tuple(f.substitute(values) for f in fact.rhs_index))
        return used

    def _solutions(self, fact: Fact, at: Index) -> Iterator[dict[str, Affine]]:
        """Fact symbols at an index; where they are no affine forms of it, a solution for each value of its
        digits."""
        found = False
        for values in self._by_digits(fact.lhs_index, fact.ranges, at, MAX_DIGITS):
            found = True
            yield values
        if found or any(_in_digits(f, target) for f, target in zip(fact.lhs_index, at, strict=True)):
            return
        quotients = self.quotients.symbols(fact, at, self.resolve)
        if quotients is not None:
            yield quotients

    def _by_digits(
        self, forms: Sequence[Affine], symbols: Mapping[str, Range], at: Index, most: int
    ) -> Iterator[dict[str, Affine]]:
        """Solutions with at most so many values of major digits, of one coordinate after another."""
        values = self.resolve(forms, symbols, at)
        if values is not None:
            yield values
            return
        for form, target in zip(forms, at, strict=True):
            if not _in_digits(form, target):
                continue
            symbol = max(form.terms, key=lambda t: t[1])[0]
            lo, hi = symbols[symbol]
            for value in range(lo, hi) if hi - lo <= most else ():
                fixed = {symbol: Affine(value)}
                rest = {s: r for s, r in symbols.items() if s != symbol}
                there = [f.substitute(fixed) for f in forms]
                for found in self._by_digits(there, rest, at, most // (hi - lo)):
                    yield found | fixed
            return

    def resolve(
        self, forms: Sequence[Affine], symbols: Mapping[str, Range], at: Index
    ) -> dict[str, Affine] | None:
        """Fact symbols as affine forms of the index, guarded later where not evident;
        ``None`` if not affine.
        """
        values: dict[str, Affine] = {}
        for form, target in zip(forms, at, strict=True):
            rest = target - form.const
            terms = sorted(form.terms, key=lambda t: -t[1])
            for n, (symbol, coef) in enumerate(terms):
                if symbol in values:
                    rest = rest - values[symbol].scale(coef)
                elif n == len(terms) - 1 and coef == 1:
                    values[symbol], rest = rest, ZERO
                else:
                    parts = divided(rest, coef, self.ranges)
                    if parts is None:
                        return None
                    values[symbol], rest = parts
            if rest != ZERO:
                if rest.is_const:
                    return None
                if not form.terms:
                    continue
                return None
        for s, (lo, hi) in symbols.items():
            value = values.setdefault(s, Affine(lo))
            if all(x in self.ranges for x in value.symbols):
                first, last = value.interval(self.within)
                if last < lo or first >= hi:
                    return None
        return values

    # --- definitions ---------------------------------------------------------------------------------------

    def list_members(self, ref: Reduced, at: Index) -> None:
        axes = list(self.model.plan.mesh.axes)
        for member in ref.of:
            for point in self.model.coordinates(ref, member):
                full = list(at)
                for a, value in sorted(zip(ref.axes, point, strict=True), key=lambda t: axes.index(t[0])):
                    full.insert(axes.index(a), Affine(value))
                self.unfold(member, full)

    def define(self, ref: str, at: Index) -> None:
        """A ``def`` premise (with its index equations), then whatever it reads."""
        op = self.model.ops[ref]
        if op.name in ("reshape", "all_gather", "all_to_all"):
            self.regroup(ref, at)
            return
        if op.name == "gather":
            self.gather(ref, at)
            return
        self.premises.append(Def(ref, at))
        for source, index in reads(self.model, self.premises[-1], self):
            self.unfold(source, index)

    def regroup(self, ref: str, at: Index) -> None:
        op = self.model.ops[ref]
        mesh = len(self.model.tensors.mesh_axes(ref))
        operand = self.model.operands(ref)[0]
        arg = list(at[:mesh]) + [ZERO] * len(self.model.tensors.type(operand).shape)
        if op.name != "reshape":
            arg[mesh:] = at[mesh:]
        if op.name == "all_to_all":
            d = op.integer("split_dim")
            place = self.model.position(self.model.group(ref).axes, at)
            arg[mesh + d] = place.scale(op.type.shape[d]) + at[mesh + d]
        equations = []
        for p, part in enumerate(self.model.parts(ref)):
            forms = [at[c] for c in part.at]
            position = regroup.linear(forms, part.at_sizes)
            solved = regroup.unlinear(position, part.arg_sizes, self.ranges) if part.arg else []
            if solved is None:
                solved = [self.fresh("q", 0, n) if n > 1 else ZERO for n in part.arg_sizes]
                self.within |= located(position, solved, part.arg_sizes, self.ranges, self.within)
                equations.append(p)
            for c, form in zip(part.arg, solved, strict=True):
                arg[c] = form
        full = tuple(arg)
        self.premises.append(Def(ref, at, full))
        self.premises.extend(BoundIndex(ref, at, full, p) for p in equations)
        if op.name == "reshape":
            self.unfold(operand, full)
            return
        for member in self.model.family(ref).values():
            self.unfold(member, full)

    def gather(self, ref: str, at: Index) -> None:
        op = self.model.ops[ref]
        operand, indices = self.model.operands(ref)
        mesh = len(self.model.tensors.mesh_axes(ref))
        axis, batch = op.integer("axis"), op.integer("batch_dims")
        free = len(self.model.tensors.type(indices).shape) - batch
        body = at[mesh:]
        where = (*at[:mesh], *body[:batch], *body[axis : axis + free])
        value = self.element(indices, where)
        full = (*at[:mesh], *body[:axis], value, *body[axis + free :])
        self.premises.append(Def(ref, at, full))
        # A looked-up table is read through its relation: regrouping at an integer element costs solvers much.
        if not self.use_facts(operand, full):
            self.unfold(operand, full)

    def element(self, ref: str, at: Index) -> Affine:
        """The symbol that stands for an integer element."""
        if (ref, at) not in self.values:
            symbol = self.fresh("v", None, None)
            self.values[ref, at] = symbol.symbols[0]
            self.premises.append(BoundValue(ref, at, symbol.symbols[0]))
            self.unfold(ref, at)
        return Affine.symbol(self.values[ref, at])


def _sent_along(model: Model, goal: Fact) -> set[str]:
    """Coordinates from which a message counts where it comes from: with these, stages of a pipeline that
    are one rank class each have one obligation."""
    op = model.op(goal.lhs)
    if op is None or op.name != "recv":
        return set()
    moved = (
        f for a, f in zip(model.plan.mesh.axes, op.affines("from"), strict=True) if f != Affine.symbol(a)
    )
    return {s for f in moved for s in f.symbols}


def _in_digits(form: Affine, target: Affine) -> bool:
    return len(form.terms) > 1 and not target.is_const


def reads(model: Model, premise: LayoutPremise, builder: LayoutBuilder) -> list[tuple[Ref, Index]]:
    """The tensor elements that a ``def`` premise reads, from its own text generator."""
    stage = LayoutStage(builder.number, "", tuple(builder.symbols), ())
    recorder = _Recorder(model, builder.k.facts, stage)
    recorder.premise(premise)
    return recorder.found


class _Recorder(LayoutText):
    """A text generator that remembers what it reads."""

    def __init__(self, model: Model, facts: Sequence[Fact], stage: LayoutStage) -> None:
        super().__init__(model, facts, stage)
        self.found: list[tuple[Ref, Index]] = []

    def read(self, ref: Ref, index: Sequence[Affine]) -> Sexp:
        self.found.append((ref, tuple(index)))
        return super().read(ref, index)
