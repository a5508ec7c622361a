"""Algebra stages at reduced sizes (obligations 4, 5, 7 to 10).

One table of op semantics (`_define`) serves twice: with representatives it gives the terms of the file, with
bound variables the symbolic expressions whose products and arguments are counted for the widths. A variable
is an int (representative) or a string "class.g0" (free in the goal), "class.v0" (template), "class.b0"
(bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from .affine import Affine, row_major
from .errors import Rejected, Undecided
from .model import Model, evident
from .normalise import Node, law_holds
from .reader import ELEMENTWISE, UNARY, Op
from .records import (
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
from .terms import Term, real

Coord = tuple[Any, ...]
Key = tuple[Ref, tuple[int, ...]]
Choice = tuple[tuple[Coord, ...], Fraction, tuple[str, ...]]
Counts = dict[str, int]
Measure = tuple[frozenset[str], Counts, Counts]
TRIVIAL: Tree = ((0, ()),)
MAX_PIECES, MAX_TERMS, MAX_STEPS = 64, 20_000, 200_000


def term_of(node: Node) -> Term:
    """The SMT-LIB term of a node."""
    if isinstance(node, Element):
        return node
    match node[0]:
        case "lit":
            return real(node[1])
        case "*":
            return ("*", real(node[1]), term_of(node[2]))
        case "neg_inf" | "pos_inf":
            return node[0]
        case head:
            return ("-" if head == "neg" else head, *map(term_of, node[1:]))


class Algebra:
    """One algebra stage. `cases` holds, per case, its file, assertions, definitions and goal."""

    def __init__(self, model: Model, facts: Sequence[Fact], stage: AlgebraStage, where: str) -> None:
        self.model, self.facts, self.stage, self.where = model, facts, stage, where
        self.ranges = {f"{c}.{r}": (0, n) for c, (n, m) in stage.classes.items() for r in range(min(m, 1000))}
        self.trees: dict[Ref, tuple[Tree, ...]] = {}
        for ref, trees in stage.trees:
            self._add_trees(ref, trees)
        self.templates: dict[tuple[Key, int, str], Element] = {}
        self.bound = 0
        self.widths: dict[frozenset[Any], Counts] = {}
        self._check_goals()
        self.cases = [self._case(case, f"{where}, case {i}") for i, case in enumerate(stage.cases)]

    def fail(self, number: int, detail: str) -> Rejected:
        names = {4: "hypotheses", 5: "definitions", 7: "laws", 8: "trees and classes", 9: "widths",
                 10: "goals"}
        return Rejected(number, names[number], detail, self.where)

    # Trees and elements (obligation 8)

    def _add_trees(self, ref: Ref, trees: tuple[Tree, ...]) -> None:
        bounds = self.model.ranges(ref)
        if ref in self.trees or len(trees) != len(bounds):
            raise self.fail(8, f"{ref} has {len(bounds)} coordinates and one list of trees")
        for tree, (low, high) in zip(trees, bounds, strict=True):
            at = low
            for offset, classes in tree:
                if offset != at or len(tree) > MAX_PIECES:
                    raise self.fail(8, f"the pieces of {ref} do not tile [{low}, {high})")
                at += math.prod(self._size(c) for c in classes)
            if at != high:
                raise self.fail(8, f"the pieces of {ref} do not tile [{low}, {high})")
        self.trees[ref] = trees

    def _size(self, cls: str) -> int:
        return self.stage.classes[cls][0]

    def _tree(self, ref: Ref) -> tuple[Tree, ...]:
        if ref not in self.trees and self.model.is_literal(ref):
            return ()
        if ref not in self.trees:
            raise self.fail(8, f"{ref} has no trees")
        return self.trees[ref]

    def _check(self, e: Element) -> Element:
        """An element with existing pieces and representatives."""
        trees = self._tree(e.ref)
        good = len(trees) == len(e.coords)
        for tree, coord in zip(trees, e.coords, strict=False):
            piece = tree[coord[0]] if coord and coord[0] < len(tree) else None
            good = good and piece is not None and len(piece[1]) == len(coord) - 1 and all(
                r < self.stage.classes[c][1] for c, r in zip(piece[1], coord[1:], strict=True))
        if not good:
            raise self.fail(8, f"{e.ref} has no element {list(map(list, e.coords))}")
        return e

    def _leaf(self, ref: Ref, coords: Sequence[Coord]) -> Node:
        """A read: the literal of a constant, else the element."""
        value = self.model.constant(ref)
        if isinstance(value, str):
            return ("pos_inf",) if value == "inf" else ("neg_inf",)
        return ("lit", Fraction(value)) if isinstance(value, (bool, Fraction)) else Element(ref,
            tuple(coords))

    def _form(self, piece: Piece, names: Sequence[str]) -> Affine:
        place = row_major([Affine.symbol(v) for v in names], [self._size(c) for c in piece[1]])
        return place.shift(piece[0])

    def _decode(self, form: Affine, tree: Tree) -> Coord | None:
        """The piece and variables whose position is exactly this form."""
        for number, piece in enumerate(tree):
            options = [[v for v in sorted(form.names()) if v.partition(".")[0] == c] for c in piece[1]]
            if piece[0] == form.const and math.prod(map(len, options)) <= 4096:
                for names in product(*options):
                    if self._form(piece, names) == form:
                        return (number, *names)
        return None

    def _locate(self, ref: Ref, index: Sequence[Affine], values: Mapping[str, Affine],
                number: int) -> Element:
        """The element at index forms over the variables; each must be the position of a piece."""
        coords: list[Coord] = []
        for form, tree in zip(index, self._tree(ref), strict=True):
            coord = self._decode(form.substitute(values), tree)
            if coord is None:
                raise self.fail(number, f"an index of {ref} is no position of a piece")
            variables = [(v, v.partition(".")[2]) for v in coord[1:]]
            coords.append((coord[0], *(int(tail) if tail.isdigit() else v for v, tail in variables)))
        return Element(ref, tuple(coords))

    # Goals and patterns (obligation 10)

    def _goal(self, label: Callable[[int, str], str]) -> tuple[Node, Node]:
        """Both sides of the goal, the k-th free occurrence of a class named by `label`."""
        goal, values, k = self.facts[self.stage.goal], dict[str, Affine](), 0
        for (name, low, _), classes in zip(goal.symbols, self.stage.goal_at, strict=True):
            names = [f"{c}.{label(k + j, c)}" for j, c in enumerate(classes)]
            k += len(classes)
            values[name] = self._form((low, classes), names)
        left = self._locate(goal.lhs, goal.lhs_index, values, 10)
        right = self._locate(goal.rhs, goal.rhs_index, values, 10)
        node = self._leaf(right.ref, right.coords)
        return self._leaf(left.ref, left.coords), node if goal.coef == 1 else ("*", goal.coef, node)

    def _check_goals(self) -> None:
        goal, at = self.facts[self.stage.goal], self.stage.goal_at
        if len(at) != len(goal.symbols):
            raise self.fail(10, "goal_at must name the classes of every symbol")
        for (name, low, high), classes in zip(goal.symbols, at, strict=True):
            if math.prod(map(self._size, classes)) != high - low:
                raise self.fail(10, f"the classes of {name} do not make up its range")
        wanted, count = set(self._patterns()), 0
        if not wanted:
            raise self.fail(9, "a reduced class has fewer representatives than free occurrences")
        for case in self.stage.cases:
            if tuple(map(len, case.reps)) != tuple(map(len, at)):
                raise self.fail(10, "a case must give one representative per class of each symbol")
            count += tuple(r for reps in case.reps for r in reps) in wanted
        if count != len(wanted) or count != len(self.stage.cases) or len({c.reps
for c in self.stage.cases}) != count:
            raise self.fail(10, f"{len(wanted)} coincidence patterns are needed, each exactly once")

    def _patterns(self) -> Iterator[tuple[int, ...]]:
        """Distinct representatives for a reduced class, restricted growth strings for an exact one."""
        flat = [c for classes in self.stage.goal_at for c in classes]

        def extend(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(done) == len(flat):
                yield done
                return
            cls = flat[len(done)]
            n, m = self.stage.classes[cls]
            used = len({r for c, r in zip(flat, done, strict=False) if c == cls})
            for rep in range(used if m < n else 0, min(used + 1, m)):
                yield from extend((*done, rep))

        for number, pattern in enumerate(extend(())):
            if number >= MAX_TERMS:
                raise Undecided(f"{self.where}: too many coincidence patterns")
            yield pattern

    # One case

    def _case(self, case: Case, where: str) -> tuple[str, list[tuple[str, Term]], dict[Element, Node], Node,
                                                     Node]:
        self.where = where
        defs: dict[Element, Node] = {}
        keys: dict[Key, Any] = {}
        assertions: list[tuple[str, Term]] = []
        for number, premise in enumerate(case.premises, 1):
            self.where = f"{where}, premise {number}"
            match premise:
                case ElementDef(e):
                    rhs = self._define(self._check(e), self._representatives)
                    self._claim(keys, e, None)
                    kind, defs[e], left, right = "def", rhs, term_of(e), term_of(rhs)
                case ElementHyp():
                    e, rhs, left, right = self._hyp(premise)
                    self._claim(keys, e, (premise.fact, premise.defines))
                    kind, defs[e] = "hyp", rhs
                case Law(schema, lhs, rhs):
                    sides = [self._read(lhs), self._read(rhs)]
                    if not law_holds(schema, *sides):
                        raise self.fail(7, f"this is no instance of the {schema} law")
                    kind, left, right = "law", term_of(sides[0]), term_of(sides[1])
            assertions.append((f"{kind}.{number}", ("=", left, right)))
        self.where = where
        flat = [r for reps in case.reps for r in reps]
        sides = list(self._goal(lambda k, c: str(flat[k])))
        assertions.append(("goal", ("not", ("=", term_of(sides[0]), term_of(sides[1])))))
        self._check_widths(keys)
        return case.file, assertions, defs, sides[0], sides[1]

    def _claim(self, keys: dict[Key, Any], e: Element, source: Any) -> None:
        """Each (REF, pieces) has one definition; a reduced REF is defined by hyps or by defs, not by both."""
        key = (e.ref, tuple(c[0] for c in e.coords))
        others = [s for k, s in keys.items() if k == key or (isinstance(e.ref, Reduced) and k[0] == e.ref)]
        if keys.setdefault(key, source) != source or any((s is None) != (source is None) for s in others):
            raise self.fail(4, f"{e.ref} is defined twice")

    def _read(self, node: Node) -> Node:
        """A law's term with its elements checked and constants read."""
        if isinstance(node, Element):
            self._check(node)
            return self._leaf(node.ref, node.coords)
        head, *rest = node
        parts = (n if isinstance(n, Fraction) else self._read(n) for n in rest)
        return node if head == "lit" else (head, *parts)

    # Hypotheses (obligation 4)

    def _hyp(self, premise: ElementHyp) -> tuple[Element, Node, Term, Term]:
        """Element defined, its definition, and both sides of the equation as written."""
        fact = self.facts[premise.fact]
        if len(premise.at) != len(fact.symbols):
            raise self.fail(4, f"{len(fact.symbols)} symbols, {len(premise.at)} forms")
        values = {}
        for (name, low, high), form in zip(fact.symbols, premise.at, strict=True):
            values[name] = form
            if not evident(form, low, high, self.ranges):
                raise self.fail(4, f"{name} leaves the range of fact {premise.fact}")
        left = self._locate(fact.lhs, fact.lhs_index, values, 4)
        right = self._locate(fact.rhs, fact.rhs_index, values, 4)
        forward = premise.defines == "lhs"
        here, there = (left, right) if forward else (right, left)
        if self.model.constant(here.ref) is not None:
            raise self.fail(4, f"{here.ref} is a constant and cannot be defined")
        key = (here.ref, tuple(c[0] for c in here.coords))
        if self._apply(key, premise.fact, premise.defines, here) != there:
            raise self.fail(4, f"the other side does not follow from the element of {here.ref}")
        rhs = self._hyp_node(fact, forward, there)
        other = self._leaf(right.ref, right.coords)
        equation = other if fact.coef == 1 else ("*", fact.coef, other)
        return here, rhs, term_of(self._leaf(left.ref, left.coords)), term_of(equation)

    def _hyp_node(self, fact: Fact, forward: bool, there: Element) -> Node:
        factor = fact.coef if forward else 1 / fact.coef
        node = self._leaf(there.ref, there.coords)
        return node if factor == 1 else ("*", factor, node)

    def _apply(self, key: Key, number: int, side: str, here: Element) -> Element:
        """The other side at an element, by the whole piece's template: fact symbols solved for positions."""
        fact, (ref, pieces) = self.facts[number], key
        known = self.templates.get((key, number, side))
        names = [[f"{c}.v{j}_{k}" for k, c in enumerate(tree[p][1])]
                 for j, (tree, p) in enumerate(zip(self._tree(ref), pieces, strict=True))]
        if known is None:
            ranges = {v: (0, self._size(v.partition(".")[0])) for line in names for v in line}
            forms = [self._form(tree[p], line)
                     for tree, p, line in zip(self._tree(ref), pieces, names, strict=True)]
            index, other, there = ((fact.lhs_index, fact.rhs_index, fact.rhs) if side == "lhs" else
                                   (fact.rhs_index, fact.lhs_index, fact.lhs))
            values = solve(index, forms, fact)
            if values is None or any(not evident(values[s], lo, hi, ranges) for s, lo, hi in fact.symbols):
                raise self.fail(4, f"fact {number} does not define this piece of {ref}")
            if any(f.substitute(values) != form for f, form in zip(index, forms, strict=True)):
                raise self.fail(4, f"fact {number} does not define this piece of {ref}")
            known = self.templates[key, number, side] = self._locate(there, other, values, 4)
        actual = {v: r for line, coord in zip(names, here.coords, strict=True)
                  for v, r in zip(line, coord[1:], strict=True)}
        return Element(known.ref, tuple((c[0], *(actual[v] for v in c[1:])) for c in known.coords))

    # Definitions (obligation 5)

    def _representatives(self, trees: Sequence[Tree]) -> list[Choice]:
        """All items (piece, representatives) of the trees, in order, with their weights n/m."""
        items = []
        for tree in trees:
            row: list[tuple[Coord, Fraction]] = []
            for number, (_, classes) in enumerate(tree):
                weight = math.prod((Fraction(*self.stage.classes[c]) for c in classes), start=Fraction(1))
                row += [((number, *reps), weight) for reps in product(*(range(self.stage.classes[c][1])
                                                                        for c in classes))]
            items.append(row)
        if math.prod(map(len, items)) > MAX_TERMS:
            raise Undecided(f"{self.where}: a sum has too many terms")
        return [(tuple(c for c, _ in pick), math.prod((w for _, w in pick), start=Fraction(1)), ())
                for pick in product(*items)]

    def _variables(self, trees: Sequence[Tree]) -> list[Choice]:
        """All combinations of pieces, with fresh bound variables."""
        choices: list[Choice] = []
        for pick in product(*(enumerate(tree) for tree in trees)):
            coords: list[Coord] = []
            for number, (_, classes) in pick:
                coords.append((number, *(f"{c}.b{self.bound + k}" for k, c in enumerate(classes))))
                self.bound += len(classes)
            choices.append((tuple(coords), Fraction(1), tuple(v for c in coords for v in c[1:])))
        return choices

    @staticmethod
    def _collect(kind: str, parts: list[tuple[Choice, Node]]) -> Node:
        """A sum or an idempotent reduction over the chosen items."""
        function = {"max": "max2", "or": "max2", "min": "min2", "and": "min2"}.get(kind)
        if any(choice[2] for choice, _ in parts):
            return ("fold" if function else "sum", function, *((choice[2], node) for choice, node in parts))
        if function is None:
            terms = [node if w == 1 else ("*", w, node) for (_, w, _), node in parts]
            return ("+", *terms) if len(terms) > 1 else terms[0]
        result = parts[-1][1]
        for _, node in reversed(parts[:-1]):
            result = (function, node, result)
        return result

    def _define(self, e: Element, choose: Callable[[Sequence[Tree]], list[Choice]]) -> Node:
        """The right-hand side of an element: the op's StableHLO meaning, booleans as 0 and 1."""
        model, ref, coords = self.model, e.ref, e.coords
        if isinstance(ref, Reduced):
            return self._reduced(ref, coords, choose)
        op = model.producer(ref)
        if op is None:
            raise self.fail(5, f"{ref} is an input and has no def")
        x = [Tensor(ref.space, o) for o in op.operands]
        k, trees = len(model.mesh_axes(ref)), self._tree(ref)

        def operand(i: int, wanted: Sequence[Tree], at: Sequence[Coord]) -> Node:
            free = model.constant(x[i]) is None or isinstance(model.constant(x[i]), Affine)
            if free and self._tree(x[i]) != tuple(wanted):
                raise self.fail(8, f"{op.name}: {x[i]} and {ref} are cut differently")
            return self._leaf(x[i], at)

        match op.name:
            case "broadcast_in_dim":
                sizes = model.type(x[0]).shape
                where = [k + d if n > 1 else -1 for d, n in zip(op.attrs["dims"], sizes, strict=True)]
                return operand(0, [*trees[:k], *(trees[i] if i >= 0 else TRIVIAL for i in where)],
                               [*coords[:k], *(coords[i] if i >= 0 else (0,) for i in where)])
            case "transpose":
                back = sorted(range(len(trees) - k), key=lambda i: int(op.attrs["perm"][i]))
                return operand(0, [*trees[:k], *(trees[k + i] for i in back)],
                               [*coords[:k], *(coords[k + i] for i in back)])
            case "reduce":
                dims = [k + d for d in op.attrs["dims"]]
                inner, parts = self._tree(x[0]), []
                for choice in choose([inner[d] for d in dims]):
                    summed = dict(zip(dims, choice[0], strict=True))
                    places, outer = iter(coords), iter(trees)
                    whole = [summed[i] if i in summed else next(places) for i in range(len(inner))]
                    wanted = [inner[i] if i in summed else next(outer) for i in range(len(inner))]
                    parts.append((choice, operand(0, wanted, whole)))
                return self._collect(op.attrs["kind"], parts)
            case "dot_general":
                return self._dot(op, x, operand, trees, coords, k, choose)
            case "all_reduce":
                red = model.reduced_of(op, ref, op.attrs["kind"])
                kept = [i for i in range(len(trees)) if i >= k or model.axes[i] not in red.axes]
                model.type(red)
                if self._tree(red) != tuple(trees[i] for i in kept):
                    raise self.fail(8, f"all_reduce: {red} and {ref} are cut differently")
                return self._leaf(red, [coords[i] for i in kept])
            case _ if op.name not in ELEMENTWISE:
                raise self.fail(5, f"{op.name} of {ref} has no algebra def")
            case _:
                return self._elementwise(op, x, [operand(i, trees, coords) for i in range(len(x))])

    def _reduced(self, ref: Reduced, coords: Sequence[Coord], choose: Callable[[Sequence[Tree]], list[Choice]]
                 ) -> Node:
        parts = []
        inner = [i for i, a in enumerate(self.model.axes) if a in ref.axes]
        for member in ref.of:
            trees = self._tree(member)
            if tuple(t for i, t in enumerate(trees) if i not in inner) != self._tree(ref):
                raise self.fail(8, f"{ref} and its member {member} are cut differently")
            for choice in choose([trees[i] for i in inner]):
                own, rest = iter(choice[0]), iter(coords)
                full = [next(own) if i in inner else next(rest) for i in range(len(trees))]
                parts.append((choice, self._leaf(member, full)))
        return self._collect(ref.kind, parts)

    def _dot(self, op: Op, x: list[Tensor], operand: Callable[..., Node], trees: Sequence[Tree],
             coords: Sequence[Coord], k: int, choose: Callable[[Sequence[Tree]], list[Choice]]) -> Node:
        first = 0 if self.model.constant(x[0]) is None else 1
        names = ("lhs_batch", "lhs_contract"), ("rhs_batch", "rhs_contract")
        inner = [self._tree(x[first])[k + d] for d in op.attrs[names[first][1]]]
        parts = []
        for choice in choose(inner):
            place, sides = k + len(op.attrs["lhs_batch"]), []
            for i, (batch, contract) in enumerate(names):
                wanted, at = list(trees[:k]), list(coords[:k])
                for d in range(len(self.model.type(x[i]).shape)):
                    if d in op.attrs[contract]:
                        c = op.attrs[contract].index(d)
                        wanted.append(inner[c])
                        at.append(choice[0][c])
                        continue
                    source = k + op.attrs[batch].index(d) if d in op.attrs[batch] else place
                    place += d not in op.attrs[batch]
                    wanted.append(trees[source])
                    at.append(coords[source])
                sides.append(operand(i, wanted, at))
            parts.append((choice, ("mul", *sides)))
        return self._collect("add", parts)

    def _elementwise(self, op: Op, x: list[Tensor], reads: list[Node]) -> Node:
        constants = [self.model.constant(o) for o in x]
        match op.name:
            case "add":
                return ("+", *reads)
            case "subtract":
                return ("-", *reads)
            case "negate":
                return ("neg", *reads)
            case "not":
                return ("-", ("lit", Fraction(1)), *reads)
            case "multiply":
                for c, other in ((constants[0], 1), (constants[1], 0)):
                    if isinstance(c, Fraction):
                        return ("*", c, reads[other])
                return ("mul", *reads)
            case "divide":
                c = constants[1]
                return ("*", 1 / c, reads[0]) if isinstance(c, Fraction) and c else (
                    "mul", reads[0], ("recip", reads[1]))
            case "maximum" | "minimum":
                return (op.name[:3] + "2", *reads)
            case "and":
                return ("mul", *reads)
            case "or":
                return ("-", ("+", *reads), ("mul", *reads))
            case "select":
                return ("+", reads[2], ("mul", reads[0], ("-", reads[1], reads[2])))
            case "compare":
                return (f"cmp_{op.attrs['direction'].lower()}", *reads)
            case "convert":
                free = op.type.sort == "Bool" and self.model.type(x[0]).sort == "Int"
                return ("nonzero", *reads) if free else reads[0]
            case "power":
                return ("fpow", *reads)
            case name:
                return (UNARY[name], *reads)

    # Widths (obligation 9)

    def _check_widths(self, keys: Mapping[Key, Any]) -> None:
        """m >= min(n, w) for the checker's own w, from the expressions that these definitions give."""
        index = frozenset(keys.items())
        if index not in self.widths:
            self.widths[index] = Width(self, keys).result(self._goal(lambda k, c: f"g{k}"), [
                c for classes in self.stage.goal_at for c in classes])
        for cls, (n, m) in self.stage.classes.items():
            if m < min(n, self.widths[index].get(cls, 1)):
                w = self.widths[index][cls]
                raise self.fail(9, f"class {cls} of size {n} has {m} representatives, {w}"
                                " are needed")


class Width:
    """Counts variables in the symbolic expression of a goal (docs/certificate.md, Widths)."""

    def __init__(self, stage: Algebra, keys: Mapping[Key, Any]) -> None:
        self.stage, self.keys = stage, keys
        self.known: dict[Node, Measure | None] = {}
        self.applications: dict[str, list[tuple[Counts, Counts]]] = {}
        for ref, pieces in keys:
            trees = zip(stage._tree(ref), pieces, strict=True)
            self.measure(Element(ref, tuple((p, *(f"{c}.g{j}_{i}" for i, c in enumerate(tree[p][1])))
                                            for j, (tree, p) in enumerate(trees))))
        self.applications.clear()
        self.known.clear()

    def result(self, sides: tuple[Node, Node], free: Sequence[str]) -> Counts:
        _, products, _ = self._merge([self.measure(side) for side in sides])
        width = {}
        for cls in self.stage.stage.classes:
            needed = products.get(cls, 0)
            for pairs in self.applications.values():
                most = max(s.get(cls, 0) for s, _ in pairs)
                needed = max(needed, most + max(s.get(cls, 0) + b.get(cls, 0) for s, b in pairs))
            width[cls] = max(1, free.count(cls) + needed)
        return width

    def measure(self, node: Node) -> Measure:
        """Variables that occur free; most summed variables in one product; most variables bound inside. Products
        pass through maxima and minima, which may collapse to one of their arguments (ADR 0010)."""
        if node in self.known:
            found = self.known[node]
            if found is None:
                raise self.stage.fail(4, "the definitions are circular")
            return found
        if len(self.known) > MAX_STEPS:
            raise Undecided(f"{self.stage.where}: the expression is too large")
        self.known[node] = None
        found = self.known[node] = self._measure(node)
        return found

    def _measure(self, node: Node) -> Measure:
        if isinstance(node, Element):
            key = (node.ref, tuple(c[0] for c in node.coords))
            if key not in self.keys:
                return frozenset(v for c in node.coords for v in c[1:]), {}, {}
            if self.keys[key] is None:
                return self.measure(self.stage._define(node, self.stage._variables))
            number, side = self.keys[key]
            there = self.stage._apply(key, number, side, node)
            return self.measure(self.stage._leaf(there.ref, there.coords))
        head, *rest = node
        if head in ("lit", "neg_inf", "pos_inf"):
            return frozenset(), {}, {}
        if head in ("sum", "fold"):
            return self._bind(rest[0], rest[1:])
        parts = [self.measure(n) for n in rest if not isinstance(n, Fraction)]
        free, products, inside = self._merge(parts)
        if head == "mul":
            return free, _add(parts[0][1], parts[1][1]), _add(parts[0][2], parts[1][2])
        if head in ("+", "-", "neg", "*"):
            return free, products, inside
        self._apply(head, free, inside, products)
        return free, products if head in ("max2", "min2") else {}, inside

    def _bind(self, function: str | None, alternatives: Sequence[tuple[tuple[str, ...], Node]]
              ) -> Measure:
        parts = []
        for binders, node in alternatives:
            free, products, inside = self.measure(node)
            own = _count(binders)
            products = products if function else _add(products, own)
            parts.append((free - set(binders), products, _add(inside, own)))
        free, products, inside = self._merge(parts)
        if function is not None:
            self._apply(function, free, inside, products)
        return free, products, inside

    def _apply(self, function: str, free: frozenset[str], inside: Counts, products: Counts) -> None:
        bound = _count([v for v in free if v.partition(".")[2][0] != "g"])
        self.applications.setdefault(function, []).append((_add(bound, inside), products))

    @staticmethod
    def _merge(parts: Sequence[Measure]) -> Measure:
        free = frozenset[str]().union(*(p[0] for p in parts))
        most: list[Counts] = [{}, {}]
        for p in parts:
            for counts, new in zip(most, p[1:], strict=True):
                counts.update({c: max(n, counts.get(c, 0)) for c, n in new.items()})
        return free, most[0], most[1]


def _count(variables: Sequence[str]) -> Counts:
    names = [v.partition(".")[0] for v in variables]
    return {c: names.count(c) for c in names}


def _add(a: Counts, b: Counts) -> Counts:
    return {c: a.get(c, 0) + b.get(c, 0) for c in (*a, *b)}


def solve(index: Sequence[Affine], forms: Sequence[Affine], fact: Fact) -> dict[str, Affine] | None:
    """Values of a fact's symbols at which `index` takes these forms, if mixed-radix division finds them.

    Only a guess: the caller substitutes back. A symbol of one value needs no equation.
    """
    values = {s: Affine(lo) for s, lo, hi in fact.symbols if hi == lo + 1}
    for pattern, form in zip(index, forms, strict=True):
        rest = Affine.total([(1, form), (-1, Affine(pattern.const))] + [
            (-c, values[s]) for s, c in pattern.terms if s in values])
        open_terms = sorted(((c, s) for s, c in pattern.terms if s not in values), reverse=True)
        low = {s: lo for s, lo, _ in fact.symbols}
        for i, (c, s) in enumerate(open_terms):
            if c < 1:
                return None
            below = sum(d * low[o] for d, o in open_terms[i + 1:])
            share = Affine.make((rest.const - below) // c, {v: a // c for v, a in rest.terms if a % c == 0})
            values[s] = share
            rest = Affine.total([(1, rest), (-c, share)])
    return values if len(values) == len(fact.symbols) else None
