"""Algebra stages from recipes: index classes, axis trees, representatives, premises, ring laws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from networkx.utils import UnionFind

from certificates.plan.affine import Affine
from certificates.proof.facts import Reduced, Ref
from certificates.proof.stages import (
    AlgebraPremise,
    AlgebraStage,
    Case,
    Elem,
    ElemDef,
    ElemHyp,
    Piece,
    Tree,
    strides,
)
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..relating.access import access
from ..relating.knowledge import Knowledge
from ..relating.recipes import AlgebraRecipe, Instance
from .field_laws import field_law
from .ring_laws import Polynomials
from .widths import Measurer, widths

Coordinate = tuple[Ref, int]
#: Offset, variables and strides of a position.
Leaves = tuple[int, tuple[str, ...], tuple[int, ...]]
#: Offset, and classes with strides, of a piece.
Digits = tuple[int, list[tuple[str, int]]]
MAX_ELEMENTS = 4000


@dataclass(frozen=True)
class Side:
    """One side of a fact instance: per coordinate the piece number and its variables, major to minor."""

    ref: Ref
    places: tuple[tuple[int, tuple[str, ...]], ...]


class AlgebraBuilder:
    """Builds the stage of one algebra fact."""

    def __init__(self, knowledge: Knowledge, number: int, recipe: AlgebraRecipe) -> None:
        self.k, self.model, self.number, self.recipe = knowledge, knowledge.model, number, recipe
        self.goal = knowledge.facts[number]
        self.variables = {s: r for s, r in recipe.ranges.items() if r[1] - r[0] > 1}
        self._class_of = UnionFind()
        self._trees()
        #: Fact instances, and the sides of theirs that they substitute, by the tensors of these.
        self._defining: dict[Ref, list[tuple[Instance, Side]]] = {}
        for instance in recipe.instances:
            side = self._side_of(instance)
            self._defining.setdefault(side.ref, []).append((instance, side))

    # --- classes and trees ---------------------------------------------------------------------------------

    def _leaves(self, form: Affine) -> Leaves:
        """Offset, variables (major to minor) and strides of a position."""
        offset, leaves = form.const, []
        for symbol, coef in form.terms:
            lo, _ = self.recipe.ranges[symbol]
            offset += coef * lo
            if symbol in self.variables:
                if coef < 0:
                    raise NoDefinition(f"{self.goal.lhs}: position {form} runs downwards")
                leaves.append((coef, symbol))
        leaves.sort(reverse=True)
        return offset, tuple(s for _, s in leaves), tuple(c for c, _ in leaves)

    def _size(self, leaves: Sequence[str]) -> int:
        total = 1
        for s in leaves:
            total *= self.variables[s][1] - self.variables[s][0]
        return total

    def _trees(self) -> None:
        """Trees per coordinate: used pieces, aligned over the coordinates that ops tie together, gaps
        filled.
        """
        used: dict[Coordinate, set[Leaves]] = {}
        for use in self.recipe.uses:
            for c, form in enumerate(use.at):
                used.setdefault((use.ref, c), set()).add(self._leaves(form))
        aligned = UnionFind()
        for x, y in aligned_by(
            self.model, self.recipe.expand, dict.fromkeys(use.ref for use in self.recipe.uses)
        ):
            aligned.union(x, y)
        groups: dict[object, list[Coordinate]] = {}
        for coordinate in used:
            groups.setdefault(aligned[coordinate], []).append(coordinate)
        layouts: dict[object, list[Leaves]] = {}
        for key, members in groups.items():
            pieces = sorted({p for m in members for p in used[m]})
            chosen: dict[object, Leaves] = {}
            for offset, leaves, steps in pieces:
                shape = offset, self._sizes(leaves), steps
                for a, b in zip(chosen.setdefault(shape, (offset, leaves, steps))[1], leaves, strict=True):
                    self._class_of.union(a, b)
            layouts[key] = list(chosen.values())
        names: dict[object, str] = {}
        self.classes: dict[str, int] = {}

        def name(variable: str) -> str:
            root = self._class_of[variable]
            if root not in names:
                names[root] = f"i{len(names)}"
                self.classes[names[root]] = self._size([variable])
            return names[root]

        self.trees: dict[Ref, tuple[Tree, ...]] = {}
        fillers: dict[object, Tree] = {}
        for key, members in groups.items():
            lo, hi = self._range(members[0])
            if any(self._range(m) != (lo, hi) for m in members):
                raise NoDefinition(f"{self.goal.lhs}: aligned coordinates {members} differ in size")
            tree: list[Piece] = []
            cut = [(offset, tuple(map(name, leaves)), steps) for offset, leaves, steps in layouts[key]]
            for offset, digits in self._tiled([(o, [*zip(n, s, strict=True)]) for o, n, s in cut], lo, hi):
                tree.append((offset, tuple(c for c, _ in digits), tuple(s for _, s in digits)))
            fillers[key] = tuple(tree)
        for ref in dict.fromkeys(use.ref for use in self.recipe.uses):
            count = len(self.model.tensors.ranges(ref))
            self.trees[ref] = tuple(fillers[aligned[ref, c]] for c in range(count))
        self._name = name

    def _tiled(self, pieces: Sequence[Digits], low: int, high: int) -> list[Digits]:
        """The pieces with fillers, so that they tile a range: one after the other, or interleaved.

        Pieces that lie within the major stride of one repeat with it: together they tile that stride.
        """
        out: list[Digits] = []
        left = sorted(pieces)
        while left:
            first, digits = left[0]
            name, step = digits[0] if digits else ("", 1)
            n = self.classes[name] if digits else 1
            start = first
            if digits and step > math.prod(self.classes[c] for c, _ in digits[1:]):
                start = max(low, min(first - (first - low) % step, high - n * step))
            block = [p for p in left if p[0] < start + step]
            left = left[len(block) :]
            repeated = all(d and (self.classes[d[0][0]], d[0][1]) == (n, step) for _, d in block)
            if start < low or start + n * step > high or not (repeated if digits else len(block) == 1):
                raise NoDefinition(f"{self.goal.lhs}: pieces of a tree overlap or do not nest")
            out += self._gap(low, start)
            if digits:
                heads = {offset: d[0] for offset, d in block}
                for offset, rest in self._tiled([(o, d[1:]) for o, d in block], start, start + step):
                    head = heads.get(offset) or (self._filler(n), step)
                    out.append((offset, [head, *rest]))
            else:
                out += block
            low = start + n * step
        return out + self._gap(low, high)

    def _gap(self, low: int, high: int) -> list[Digits]:
        """A piece for positions that the stage does not speak of."""
        digits = [(self._filler(high - low), 1)] if high - low > 1 else []
        return [(low, digits)] if high > low else []

    def _sizes(self, leaves: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._size([s]) for s in leaves)

    def _filler(self, size: int) -> str:
        name = f"f{len(self.classes)}"
        self.classes[name] = size
        return name

    def _range(self, coordinate: Coordinate) -> tuple[int, int]:
        return self.model.tensors.ranges(coordinate[0])[coordinate[1]]

    def _side(self, ref: Ref, index: Sequence[Affine]) -> Side:
        places = []
        for c, form in enumerate(index):
            offset, leaves, steps = self._leaves(form)
            wanted = offset, tuple(self._name(s) for s in leaves), steps
            for number, piece in enumerate(self.trees[ref][c]):
                if piece == wanted:
                    places.append((number, leaves))
                    break
            else:
                raise NoDefinition(f"{self.goal.lhs}: {ref} has no piece for {form}")
        return Side(ref, tuple(places))

    def _side_of(self, instance: Instance) -> Side:
        fact = self.k.facts[instance.fact]
        values = {s: form for (s, _, _), form in zip(fact.symbols, instance.values, strict=True)}
        left = self._side(fact.lhs, [f.substitute(values) for f in fact.lhs_index])
        right = self._side(fact.rhs, [f.substitute(values) for f in fact.rhs_index])
        return left if instance.defines == "lhs" else right

    # --- elements ------------------------------------------------------------------------------------------

    def hypothesis(self, e: Elem) -> ElemHyp | None:
        """The fact instance that substitutes an element."""
        for instance, side in self._defining.get(e.ref, ()):
            if [p for p, _ in side.places] != [p[0] for p in e.index]:
                continue
            reps: dict[str, int] = {}
            consistent = all(
                reps.setdefault(s, rep) == rep
                for (_, leaves), place in zip(side.places, e.index, strict=True)
                for s, rep in zip(leaves, place[1:], strict=True)
            )
            if consistent:
                values = {
                    s: Affine(self.recipe.ranges[s][0])
                    + (Affine.symbol(f"{self._name(s)}.{reps.get(s, 0)}") if s in self.variables else 0)
                    for s in {s for form in instance.values for s in form.symbols}
                }
                at = tuple(form.substitute(values) for form in instance.values)
                return ElemHyp(instance.fact, at, instance.defines)
        return None

    def defined(self, e: Elem) -> bool:
        """Whether the stage unfolds this element by its op (a substituting fact comes first)."""
        return e.ref in self.recipe.expand and e.ref not in self._defining

    def other_side(self, text: AlgebraText, hyp: ElemHyp) -> tuple[Elem, Elem]:
        """The substituted element and what replaces it."""
        fact = self.k.facts[hyp.fact]
        values = {s: form for (s, _, _), form in zip(fact.symbols, hyp.at, strict=True)}
        left, right = text.sides(fact, values)
        return (left, right) if hyp.defines == "lhs" else (right, left)

    # --- the stage -----------------------------------------------------------------------------------------

    def build(self, title: str) -> AlgebraStage:
        """The stage with all premises that may be needed (laws included)."""
        goal_at = []
        free: Counter[str] = Counter()
        for symbol, _, _ in self.goal.symbols:
            _, leaves, steps = self._leaves(self.recipe.goal[symbol])
            if steps != strides(self._sizes(leaves)):
                raise NoDefinition(f"{self.goal.lhs}: symbol {symbol} does not run over a contiguous range")
            goal_at.append(tuple(self._name(s) for s in leaves))
            free.update(goal_at[-1])
        skeleton = AlgebraStage(
            self.number, title, {c: (n, 1) for c, n in self.classes.items()}, self.trees, tuple(goal_at), ()
        )
        case = Case(_first_reps(goal_at), ())
        text = AlgebraText(self.model, self.k.facts, skeleton)
        sides = text.sides(self.goal, text.goal_values(case))

        def substitute(e: Elem) -> Elem | None:
            hyp = self.hypothesis(e)
            return None if hyp is None else self.other_side(text, hyp)[1]

        measurer = Measurer(self.model, self.k.facts, skeleton, self.defined, substitute)
        measures = [measurer.measure(e) for e in sides]
        needed = widths(measures, free, self.classes)
        classes = {c: (n, min(n, needed[c])) for c, n in self.classes.items()}
        stage = AlgebraStage(self.number, title, classes, self.trees, tuple(goal_at), ())
        text = AlgebraText(self.model, self.k.facts, stage)
        cases = []
        for reps in patterns(goal_at, classes):
            case = Case(reps, ())
            cases.append(Case(reps, self._premises(text, case)))
        return AlgebraStage(self.number, title, classes, self.trees, tuple(goal_at), tuple(cases))

    def _premises(self, text: AlgebraText, case: Case) -> tuple[AlgebraPremise, ...]:
        premises: list[AlgebraPremise] = []
        replaced: dict[Elem, tuple[Fraction, Elem]] = {}
        done: set[Elem] = set()
        work = list(reversed(text.sides(self.goal, text.goal_values(case))))
        while work:
            e = work.pop()
            if e in done or self.model.literal(e.ref) is not None:
                continue
            done.add(e)
            if len(done) > MAX_ELEMENTS:
                raise NoDefinition(f"{self.goal.lhs}: more than {MAX_ELEMENTS} elements")
            if self.defined(e):
                premises.append(ElemDef(e))
                work += reversed(operands(text, e))
                continue
            hyp = self.hypothesis(e)
            if hyp is None:
                continue
            premises.append(hyp)
            mine, other = self.other_side(text, hyp)
            coef = self.k.facts[hyp.fact].coef
            replaced[mine] = (coef if hyp.defines == "lhs" else 1 / coef, other)
            work.append(other)
        algebra = Polynomials(text, self.defined, replaced, roots=self.recipe.roots)
        left, right = text.sides(self.goal, text.goal_values(case))
        if algebra.of(left) != algebra.scaled(self.goal.coef, algebra.of(right)):
            if not self.recipe.field:
                raise NoDefinition(f"{self.goal.lhs}: its two sides have different normal forms")
            goal = left, self.goal.coef, right
            return (*premises, field_law(text, self.defined, replaced, self.k, goal))
        return (*premises, *algebra.laws)


def aligned_by(
    model: Model, opened: Collection[Ref], refs: Collection[Ref]
) -> Iterator[tuple[Coordinate, Coordinate]]:
    """Pairs of coordinates that the definition of an opened tensor runs over together."""
    axes = list(model.plan.mesh.axes)
    for ref in (r for r in refs if r in opened):
        if isinstance(ref, Reduced):
            for member in ref.of:
                kept = [i for i in range(len(model.tensors.ranges(member)))
                        if i >= len(axes) or axes[i] not in ref.axes]  # fmt: skip
                yield from (((ref, c), (member, i)) for c, i in enumerate(kept))
            continue
        op = model.op(ref)
        if op is None:
            continue
        if op.name == "all_reduce":
            red = model.reduced(str(ref), op.text("kind"))
            kept = [i for i in range(len(model.tensors.ranges(ref)))
                    if i >= len(axes) or axes[i] not in red.axes]  # fmt: skip
            yield from (((red, c), (ref, i)) for c, i in enumerate(kept))
            continue
        ins = model.operands(ref)
        pattern = access(op, [model.tensors.type(v).shape for v in ins])
        if pattern is None:
            continue
        mesh = len(model.tensors.mesh_axes(ref))
        seen: dict[str, Coordinate] = {n: (ref, mesh + d) for d, n in enumerate(pattern.out)}
        for v, names in zip(ins, pattern.operands, strict=True):
            if v not in refs:
                continue
            yield from (((ref, c), (v, c)) for c in range(mesh))
            for d, n in enumerate(names):
                yield seen.setdefault(n, (v, mesh + d)), (v, mesh + d)


def operands(text: AlgebraText, e: Elem) -> list[Elem]:
    """All elements that the definition of an element reads."""
    if isinstance(e.ref, Reduced):
        return [x for _, x in text.expand_reduced(e)]
    op = text.model.ops[e.ref]
    if op.name == "dot_general":
        return [x for _, pair in text.expand_dot(e) for x in pair]
    if op.name == "reduce":
        return [x for _, x in text.expand_reduce(e)]
    return text.operand_elements(e)


def _first_reps(goal_at: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    count: Counter[str] = Counter()
    out = []
    for classes in goal_at:
        reps = []
        for c in classes:
            reps.append(count[c])
            count[c] += 1
        out.append(tuple(reps))
    return tuple(out)


def patterns(
    goal_at: Sequence[Sequence[str]], classes: Mapping[str, tuple[int, int]]
) -> list[tuple[tuple[int, ...], ...]]:
    """Representatives of the free indices: distinct if the class is reduced, else every coincidence
    pattern.
    """
    occurrences = Counter(c for group in goal_at for c in group)
    choices: dict[str, list[tuple[int, ...]]] = {}
    for c, count in occurrences.items():
        n, m = classes[c]
        choices[c] = [tuple(range(count))] if m < n else list(_growth(count, n))
    out = []
    for combination in itertools.product(*choices.values()):
        streams = {c: iter(reps) for c, reps in zip(choices, combination, strict=True)}
        out.append(tuple(tuple(next(streams[c]) for c in group) for group in goal_at))
    return out


def _growth(count: int, limit: int) -> Iterator[tuple[int, ...]]:
    """Restricted growth strings of a length with at most ``limit`` values, lexicographically."""

    def extend(prefix: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(prefix) == count:
            yield prefix
            return
        for value in range(min(limit, max(prefix, default=-1) + 2)):
            yield from extend((*prefix, value))

    return extend(())
