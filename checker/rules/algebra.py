"""Algebra stages at reduced sizes (obligations 4, 5, 7, 8, 10; 9 in widths.py).

One definition of the ops (`define`) serves twice: with representatives it gives the terms of the file, with
bound variables the symbolic expressions whose products and arguments are counted for the widths. A variable
is
an int (representative) or a string "class.g0" (free in the goal), "class.v0" (template), "class.b0" (bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from ..errors import Rejected, Undecided
from ..language.affine import Affine, evident, row_major
from ..language.ops import ALGEBRA, Term, fill, scaling, wires
from ..language.proof import (
    MAX_REPS,
    AlgebraStage,
    Case,
    Element,
    ElementDef,
    ElementHyp,
    Fact,
    Law,
    Piece,
    Reduced,
    Ref,
    Tensor,
    Tree,
)
from .laws import LAWS
from .model import LITERALS, Model
from .normalise import Node
from .terms import literal

Coord = tuple[Any, ...]
Key = tuple[Ref, tuple[int, ...]]
Choice = tuple[tuple[Coord, ...], Fraction, tuple[str, ...]]
"""Coordinates chosen for the summed positions, their weight, and the variables that they bind."""
Choose = Callable[[Sequence[Tree]], list[Choice]]
FOLDS = {"max": "max2", "or": "max2", "min": "min2", "and": "min2"}
TRIVIAL: Tree = ((0, (), ()),)
MAX_PIECES, MAX_TERMS = 2048, 20_000


def term_of(node: Node) -> Term:
    """The SMT-LIB term of a node."""
    if isinstance(node, Element):
        return node
    match node:
        case ("lit", q):
            return literal(q)
        case ("*", q, inner):
            return ("*", literal(q), term_of(inner))
        case (constant,):
            return constant
    return ("-" if node[0] == "neg" else node[0], *map(term_of, node[1:]))


def times(factor: Fraction, node: Node) -> Node:
    return node if factor == 1 else ("*", factor, node)


class Solved(NamedTuple):
    """One case: its file, what stands in it, what defines each element and, by piece, from where: None is the
    tensor's op, else a fact and the side that it defines."""

    file: str
    assertions: list[tuple[str, Term]]
    defs: dict[Element, Node]
    left: Node
    right: Node
    sources: dict[Key, tuple[int, str] | None]


class Algebra:
    """One algebra stage with its cases, which rest on `widths.check_widths` besides."""

    def __init__(self, model: Model, facts: Sequence[Fact], stage: AlgebraStage, where: str) -> None:
        self.model, self.facts, self.stage, self.where = model, facts, stage, where
        self.goal = facts[stage.goal]
        self.ranges = {
            f"{c}.{r}": (0, n) for c, (n, m) in stage.classes.items() for r in range(min(m, MAX_REPS))
        }
        self.trees: dict[Ref, tuple[Tree, ...]] = {}
        for ref, trees in stage.trees:
            self._add_trees(ref, trees)
        self.templates: dict[tuple[Key, int, str], Element] = {}
        self.bound = 0
        self._check_goals()
        self.cases = [self._case(case, f"{where}, case {i}") for i, case in enumerate(stage.cases)]

    def need(self, good: bool, number: int, detail: str) -> None:
        if not good:
            raise Rejected(number, detail, self.where)

    # Trees and elements (obligation 8)

    def _add_trees(self, ref: Ref, trees: tuple[Tree, ...]) -> None:
        bounds = self.model.ranges(ref)
        self.need(
            ref not in self.trees and len(trees) == len(bounds),
            8,
            f"{ref} has {len(bounds)} coordinates and one list of trees",
        )
        for tree, (low, high) in zip(trees, bounds, strict=True):
            cut = [(o, [*zip(map(self.size, classes), steps, strict=True)]) for o, classes, steps in tree]
            self.need(
                len(tree) <= MAX_PIECES and tiled(cut, low) == high,
                8,
                f"the pieces of {ref} do not tile its range",
            )
        self.trees[ref] = trees

    def size(self, cls: str) -> int:
        return self.stage.classes[cls][0]

    def tree(self, ref: Ref) -> tuple[Tree, ...]:
        if isinstance(ref, Tensor) and ref.space in LITERALS:
            return ()
        self.need(ref in self.trees, 8, f"{ref} has no trees")
        return self.trees[ref]

    def _check(self, e: Element) -> Element:
        """An element with existing pieces and representatives."""
        trees = self.tree(e.ref)
        good = len(trees) == len(e.coords) and all(
            coord
            and coord[0] < len(tree)
            and len(tree[coord[0]][1]) == len(coord) - 1
            and all(r < self.stage.classes[c][1] for c, r in zip(tree[coord[0]][1], coord[1:], strict=True))
            for tree, coord in zip(trees, e.coords, strict=True)
        )
        self.need(good, 8, f"{e.ref} has no element {list(map(list, e.coords))}")
        return e

    def leaf(self, e: Element) -> Node:
        """A read: the literal of a constant, else the element."""
        value = self.model.constant(e.ref)
        if isinstance(value, str):
            return ("pos_inf",) if value == "inf" else ("neg_inf",)
        return ("lit", Fraction(value)) if isinstance(value, (bool, Fraction)) else e

    def _form(self, piece: Piece, names: Sequence[str]) -> Affine:
        return Affine.total(zip(piece[2], map(Affine.symbol, names), strict=True)).shift(piece[0])

    def _decode(self, form: Affine, tree: Tree) -> Coord | None:
        """The piece and the variables whose position is exactly this form, by division (ADR 0046).

        No two pieces that tile a range share an offset, and each stride of a piece exceeds the sum of those
        after it (classes of size 1 aside): its place has the variable with the most left of its class.
        """
        left, names = dict(form.terms), list[str]()
        number = next((i for i, piece in enumerate(tree) if piece[0] == form.const), None)
        if number is None:
            return None
        for cls, step in zip(*tree[number][1:], strict=True):
            own = [v for v in left if v.partition(".")[0] == cls]
            if not own:
                return None
            names.append(max(own, key=left.__getitem__))
            left[names[-1]] -= step
        if any(left.values()):
            return None
        tails = (v.partition(".")[2] for v in names)
        return (number, *(int(t) if t.isdigit() else v for t, v in zip(tails, names, strict=True)))

    def _locate(
        self, ref: Ref, index: Sequence[Affine], values: Mapping[str, Affine], number: int
    ) -> Element:
        """The element at index forms over the variables; each must be the position of a piece."""
        coords = tuple(
            self._decode(form.substitute(values), tree)
            for form, tree in zip(index, self.tree(ref), strict=True)
        )
        self.need(None not in coords, number, f"an index of {ref} is no position of a piece")
        return Element(ref, tuple(c for c in coords if c is not None))

    # Goals and patterns (obligation 10)

    def goal_sides(self, label: Callable[[int], str]) -> tuple[Node, Node]:
        """Both sides of the goal, its k-th free occurrence of a class named by `label`."""
        values, k = dict[str, Affine](), 0
        for (name, low, _), classes in zip(self.goal.symbols, self.stage.goal_at, strict=True):
            digits = [Affine.symbol(f"{c}.{label(k + j)}") for j, c in enumerate(classes)]
            values[name] = row_major(digits, map(self.size, classes)).shift(low)
            k += len(classes)
        left = self._locate(self.goal.lhs, self.goal.lhs_index, values, 10)
        right = self._locate(self.goal.rhs, self.goal.rhs_index, values, 10)
        return self.leaf(left), times(self.goal.coef, self.leaf(right))

    def _check_goals(self) -> None:
        at = self.stage.goal_at
        self.need(len(at) == len(self.goal.symbols), 10, "goal_at must name the classes of every symbol")
        for (name, low, high), classes in zip(self.goal.symbols, at, strict=True):
            self.need(
                math.prod(map(self.size, classes)) == high - low,
                10,
                f"the classes of {name} do not make up its range",
            )
        wanted = self._patterns()
        self.need(bool(wanted), 9, "a reduced class has fewer representatives than free occurrences")
        shapes = {tuple(map(len, case.reps)) for case in self.stage.cases}
        self.need(
            shapes <= {tuple(map(len, at))},
            10,
            "a case must give one representative per class of each symbol",
        )
        given = [tuple(r for reps in case.reps for r in reps) for case in self.stage.cases]
        self.need(
            set(given) == wanted and len(given) == len(wanted),
            10,
            f"{len(wanted)} coincidence patterns are needed, each exactly once",
        )

    def _patterns(self) -> set[tuple[int, ...]]:
        """Distinct representatives for a reduced class, restricted growth strings for an exact one."""
        flat = [c for classes in self.stage.goal_at for c in classes]
        found: list[tuple[int, ...]] = [()]
        for k, cls in enumerate(flat):
            n, m = self.stage.classes[cls]
            longer = []
            for done in found:
                used = len({r for c, r in zip(flat[:k], done, strict=True) if c == cls})
                longer += [(*done, rep) for rep in range(used if m < n else 0, min(used + 1, m))]
            found = longer
            if len(found) > MAX_TERMS:
                raise Undecided(f"{self.where}: too many coincidence patterns")
        return set(found)

    # One case

    def _case(self, case: Case, where: str) -> Solved:
        defs, sources = dict[Element, Node](), dict[Key, Any]()
        assertions: list[tuple[str, Term]] = []
        alone, summed = "", False
        for number, premise in enumerate(case.premises, 1):
            self.where = f"{where}, premise {number}"
            match premise:
                case ElementDef(e):
                    left, right = self._check(e), self.define(e, self._representatives)
                    self._claim(sources, e, None)
                    kind, defs[e], summed = "def", right, summed or self._sums(e)
                case ElementHyp():
                    kind, e, rhs, left, right = "hyp", *self._hyp(premise)
                    self._claim(sources, e, (premise.fact, premise.defines))
                    defs[e] = rhs
                case Law(schema, lhs, rhs):
                    kind, left, right = "law", self._read(lhs), self._read(rhs)
                    self.need(schema in LAWS, 7, f"there is no law {schema[:20]}")
                    good = LAWS[schema].holds(self.model, left, right)
                    self.need(good, 7, f"this is no instance of the {schema} law")
                    if not LAWS[schema].sums:
                        alone = schema
            assertions.append((f"{kind}.{number}", ("=", term_of(left), term_of(right))))
        self.where = where
        self.need(not (alone and summed), 7, f"the {alone} law beside a sum")
        flat = [str(r) for reps in case.reps for r in reps]
        left, right = self.goal_sides(lambda k: flat[k])
        assertions.append(("goal", ("not", ("=", term_of(left), term_of(right)))))
        return Solved(case.file, assertions, defs, left, right, sources)

    def _sums(self, e: Element) -> bool:
        op = self.model.producer(e.ref)
        return isinstance(e.ref, Reduced) or (op is not None and op.name in ("reduce", "dot_general"))

    def _claim(self, sources: dict[Key, Any], e: Element, source: Any) -> None:
        """Each (REF, pieces) has one definition; a reduced REF is defined by hyps or by defs, not by both."""
        same = sources.setdefault((e.ref, e.pieces()), source) == source
        mixed = isinstance(e.ref, Reduced) and any(
            (s is None) != (source is None) for (ref, _), s in sources.items() if ref == e.ref
        )
        self.need(same and not mixed, 4, f"{e.ref} is defined twice")

    def _read(self, node: Node) -> Node:
        """A law's term with its elements checked and constants read."""
        if isinstance(node, Element):
            return self.leaf(self._check(node))
        return (node[0], *(n if isinstance(n, Fraction) else self._read(n) for n in node[1:]))

    # Hypotheses (obligation 4)

    def _hyp(self, premise: ElementHyp) -> tuple[Element, Node, Node, Node]:
        """Element defined, its definition, and both sides of the equation as written."""
        fact = self.facts[premise.fact]
        self.need(
            len(premise.at) == len(fact.symbols), 4, f"{len(fact.symbols)} symbols, {len(premise.at)} forms"
        )
        for (name, low, high), form in zip(fact.symbols, premise.at, strict=True):
            self.need(
                evident(form, low, high, self.ranges), 4, f"{name} leaves the range of fact {premise.fact}"
            )
        values = {s: form for (s, _, _), form in zip(fact.symbols, premise.at, strict=True)}
        left = self._locate(fact.lhs, fact.lhs_index, values, 4)
        right = self._locate(fact.rhs, fact.rhs_index, values, 4)
        forward = premise.defines == "lhs"
        here, there = (left, right) if forward else (right, left)
        self.need(self.model.constant(here.ref) is None, 4, f"{here.ref} is a constant and cannot be defined")
        self.need(
            self.other_side(here, premise.fact, premise.defines) == there,
            4,
            f"the other side does not follow from the element of {here.ref}",
        )
        rhs = times(fact.coef if forward else 1 / fact.coef, self.leaf(there))
        return here, rhs, self.leaf(left), times(fact.coef, self.leaf(right))

    def other_side(self, here: Element, number: int, side: str) -> Element:
        """The other side at an element, by the whole piece's template: positions divided into symbols."""
        fact, ref = self.facts[number], here.ref
        key = (ref, here.pieces()), number, side
        chosen = [tree[p] for tree, p in zip(self.tree(ref), here.pieces(), strict=True)]
        names = [[f"{c}.v{j}_{k}" for k, c in enumerate(piece[1])] for j, piece in enumerate(chosen)]
        if key not in self.templates:
            ranges = {v: (0, self.size(v.partition(".")[0])) for line in names for v in line}
            forms = [self._form(piece, line) for piece, line in zip(chosen, names, strict=True)]
            index, there, other = fact.lhs_index, fact.rhs, fact.rhs_index
            if side == "rhs":
                index, there, other = fact.rhs_index, fact.lhs, fact.lhs_index
            values = divided(index, forms, fact)
            self.need(
                all(s in values and evident(values[s], lo, hi, ranges) for s, lo, hi in fact.symbols)
                and all(f.substitute(values) == form for f, form in zip(index, forms, strict=True)),
                4,
                f"fact {number} does not define this piece of {ref}",
            )
            self.templates[key] = self._locate(there, other, values, 4)
        actual = {
            v: r
            for line, coord in zip(names, here.coords, strict=True)
            for v, r in zip(line, coord[1:], strict=True)
        }
        found = self.templates[key]
        return Element(found.ref, tuple((c[0], *(actual[v] for v in c[1:])) for c in found.coords))

    # Definitions (obligation 5)

    def _representatives(self, trees: Sequence[Tree]) -> list[Choice]:
        """All items (piece, representatives) of the trees, in order, with their weights n/m."""
        cut = [[[self.stage.classes[c] for c in classes] for _, classes, _ in tree] for tree in trees]
        if math.prod(sum(math.prod(m for _, m in piece) for piece in tree) for tree in cut) > MAX_TERMS:
            raise Undecided(f"{self.where}: a sum has too many terms")
        items = []
        for tree in cut:
            line: list[tuple[Coord, Fraction]] = []
            for number, sizes in enumerate(tree):
                weight = math.prod((Fraction(n, m) for n, m in sizes), start=Fraction(1))
                line += [((number, *reps), weight) for reps in product(*(range(m) for _, m in sizes))]
            items.append(line)
        return [
            (tuple(c for c, _ in pick), math.prod((w for _, w in pick), start=Fraction(1)), ())
            for pick in product(*items)
        ]

    def variables(self, trees: Sequence[Tree]) -> list[Choice]:
        """All combinations of pieces, with fresh bound variables; `_representatives` has listed no fewer."""
        choices: list[Choice] = []
        for pick in product(*(enumerate(tree) for tree in trees)):
            coords: list[Coord] = []
            for number, (_, classes, _) in pick:
                coords.append((number, *(f"{c}.b{self.bound + k}" for k, c in enumerate(classes))))
                self.bound += len(classes)
            choices.append((tuple(coords), Fraction(1), tuple(v for c in coords for v in c[1:])))
        return choices

    def define(self, e: Element, choose: Choose) -> Node:
        """The right-hand side of an element: the op's StableHLO meaning, booleans as 0 and 1."""
        model, ref, coords = self.model, e.ref, e.coords
        if isinstance(ref, Reduced):
            return self._reduced(ref, coords, choose)
        op, trees, k = model.producer(ref), self.tree(ref), len(model.mesh_axes(ref))
        if op is None:
            raise Rejected(5, f"{ref} is an input and has no def", self.where)
        if op.name == "all_reduce":
            red = model.reduced_of(op, ref)
            kept = [i for i in range(len(trees)) if i >= k or model.axes[i] not in red.axes]
            return self._operand(red, [trees[i] for i in kept], [coords[i] for i in kept], ref)
        wiring, x = wires(op), [Tensor(ref.space, o) for o in op.operands]
        if wiring is None:
            raise Rejected(5, f"{op.name} of {ref} has no algebra def", self.where)
        constants = [model.constant(o) for o in x]
        o, wire, _ = min(zip(x, wiring, constants, strict=True), key=lambda own: own[2] is not None)
        summed = {-1 - d: self.tree(o)[k + i] for i, d in enumerate(wire) if d is not None and d < 0}
        scale, parts = scaling(op, constants), []
        for choice in choose([summed[i] for i in range(len(summed))]):
            reads = []
            for o, wire in zip(x, wiring, strict=True):
                wanted = [TRIVIAL if d is None else trees[k + d] if d >= 0 else summed[-1 - d] for d in wire]
                at = [(0,) if d is None else coords[k + d] if d >= 0 else choice[0][-1 - d] for d in wire]
                reads.append(self._operand(o, [*trees[:k], *wanted], [*coords[:k], *at], ref))
            values = dict(zip("abc", reads, strict=False)) | {"1": ("lit", Fraction(1))}
            body = ("*", scale[0], reads[scale[1]]) if scale else fill(ALGEBRA[op.variant], values)
            parts.append((choice, body))
        sums = op.name in ("reduce", "dot_general")
        return self.collect(op.attrs.get("kind", "add"), parts) if sums else parts[0][1]

    def _operand(self, x: Ref, wanted: Sequence[Tree], at: Sequence[Coord], ref: Ref) -> Node:
        """A read of an operand whose coordinates must be cut like the result's."""
        literal = isinstance(self.model.constant(x), (bool, Fraction, str))
        self.need(literal or self.tree(x) == tuple(wanted), 8, f"{x} and {ref} are cut differently")
        return self.leaf(Element(x, tuple(at)))

    def _reduced(self, ref: Reduced, coords: Sequence[Coord], choose: Choose) -> Node:
        """A reduced tensor: its members read over the trees of the reduced mesh axes."""
        parts, inner = [], [i for i, a in enumerate(self.model.axes) if a in ref.axes]
        for member in ref.of:
            trees = self.tree(member)
            self.need(
                tuple(t for i, t in enumerate(trees) if i not in inner) == self.tree(ref),
                8,
                f"{ref} and its member {member} are cut differently",
            )
            for choice in choose([trees[i] for i in inner]):
                own, rest = iter(choice[0]), iter(coords)
                at = [next(own) if i in inner else next(rest) for i in range(len(trees))]
                parts.append((choice, self.leaf(Element(member, tuple(at)))))
        return self.collect(ref.kind, parts)

    @staticmethod
    def collect(kind: str, parts: list[tuple[Choice, Node]]) -> Node:
        """A sum or an idempotent reduction over the chosen items; over variables it binds them."""
        function = FOLDS.get(kind)
        if any(binders for (_, _, binders), _ in parts):
            return (
                "fold" if function else "sum",
                function,
                *((binders, node) for (_, _, binders), node in parts),
            )
        if function is None:
            terms = [times(weight, node) for (_, weight, _), node in parts]
            return ("+", *terms) if len(terms) > 1 else terms[0]
        result = parts[-1][1]
        for _, node in reversed(parts[:-1]):
            result = (function, node, result)
        return result


def tiled(pieces: Sequence[tuple[int, list[tuple[int, int]]]], low: int) -> int | None:
    """The end of the range from `low` that pieces (offset, sizes and strides, major first) tile, or None.

    Pieces whose offsets lie within the first major stride repeat together, so they must tile that stride.
    """
    while pieces:
        first, digits = pieces[0]
        n, step = digits[0] if digits else (1, 1)
        block = pieces[: next((i for i, (o, _) in enumerate(pieces) if o >= low + step), len(pieces))]
        rest = [(o, inner[1:]) for o, inner in block]
        whole = tiled(rest, low) == low + step if digits else len(block) == 1
        if first != low or not whole or any(inner[:1] != digits[:1] for _, inner in block):
            return None
        low, pieces = low + n * step, pieces[len(block) :]
    return low


def divided(index: Sequence[Affine], forms: Sequence[Affine], fact: Fact) -> dict[str, Affine]:
    """Values of a fact's symbols at which `index` takes these forms, by one mixed-radix division each.

    The caller substitutes back: what does not divide defines nothing. A symbol of one value needs no
    equation.
    """
    low = {s: lo for s, lo, _ in fact.symbols}
    values = {s: Affine(lo) for s, lo, hi in fact.symbols if hi == lo + 1}
    for pattern, form in zip(index, forms, strict=True):
        known = [(-c, values[s]) for s, c in pattern.terms if s in values]
        rest = Affine.total([(1, form), (-1, Affine(pattern.const)), *known])
        unknown = sorted(((c, s) for s, c in pattern.terms if s not in values and c > 0), reverse=True)
        for i, (c, s) in enumerate(unknown):
            below = sum(d * low[o] for d, o in unknown[i + 1 :])
            share = Affine((rest.const - below) // c, tuple((v, a // c) for v, a in rest.terms if a % c == 0))
            values[s], rest = share, Affine.total([(1, rest), (-c, share)])
    return values
