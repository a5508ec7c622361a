"""A pair of terms as a stage of the checker: its op semantics, widths, weights, patterns and normal forms.

The left side is a plan (mesh axis `r`, sums over `p` sharded where possible), the right side a specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from checker.errors import Undecided
from checker.language.affine import Affine, row_major
from checker.language.ops import Op, Type
from checker.language.plan import Group, Plan, Program, RankClass
from checker.language.proof import (
    AlgebraStage,
    Case,
    Element,
    ElementDef,
    ElementHyp,
    Fact,
    Reduced,
    Ref,
    Tensor,
    Tree,
)
from checker.rules.algebra import Algebra, Choice, Solved
from checker.rules.model import Model
from checker.rules.normalise import Normaliser
from checker.rules.widths import Width, check_widths
from orchestrator.staging.algebra import patterns

from .terms import CLASSES, LETTERS, Sizes, Term, free, size_of, substitute, value_of, variables

MESH = "r@"
"""The variable of the mesh coordinate: the left side reads it from the rank."""
MAX_ELEMENTS = 1500
MAX_CASES = 60


def tree(kind: str, sizes: Sizes) -> Tree:
    if kind == "p":
        return ((0, ("r", "k"), (sizes["k"], 1)),)
    return ((0, ("u",), (1,)), (sizes["u"], ("v",), (1,))) if kind == "s" else ((0, (kind,), (1,)),)


@dataclass
class Sides:
    """Both programs under construction, with the trees and the facts that define views of inputs."""

    sizes: Sizes
    ops: dict[str, list[Op]] = field(default_factory=lambda: {"s": [], "c": []})
    types: dict[str, dict[str, Type]] = field(default_factory=lambda: {"s": {}, "c": {}})
    inputs: dict[str, dict[str, Type]] = field(default_factory=lambda: {"s": {}, "c": {}})
    trees: dict[Ref, tuple[Tree, ...]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    views: dict[Ref, int] = field(default_factory=dict)
    known: dict[tuple[str, Term], tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    made: dict[str, Term] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kinds in LETTERS.items():
            self._declare("s", name, kinds)
            self.inputs["s"][name] = self.types["s"][name]

    def _declare(self, space: str, name: str, kinds: Sequence[str], dtype: str = "f32") -> str:
        self.types[space][name] = Type(dtype, tuple(size_of(k, self.sizes) for k in kinds))
        mesh = ("r",) if space == "c" else ()
        self.trees[Tensor(space, name)] = tuple(tree(k, self.sizes) for k in (*mesh, *kinds))
        return name

    def op(
        self,
        space: str,
        name: str,
        operands: Sequence[str],
        over: Sequence[str],
        dtype: str = "f32",
        **attrs: Any,
    ) -> str:
        result = f"%{len(self.ops['s']) + len(self.ops['c'])}"
        self._declare(space, result, [v[0] for v in over], dtype)
        ins = tuple(self.types[space][o] for o in operands)
        self.ops[space].append(Op(result, name, tuple(operands), ins, self.types[space][result], attrs, None))
        return result

    def spread(self, space: str, t: Term, dims: tuple[str, ...], shard: bool) -> str:
        """The tensor of a term with these dimensions, in this order."""
        if t[0] == "#":
            return self.op(space, "constant", (), dims, value=value_of(t, self.sizes))
        name, own = self.tensor(space, t, shard)
        if own == dims:
            return name
        return self.op(
            space,
            "broadcast_in_dim",
            (name,),
            dims,
            self.types[space][name].dtype,
            dims=tuple(dims.index(v) for v in own),
        )

    def tensor(self, space: str, t: Term, shard: bool) -> tuple[str, tuple[str, ...]]:
        """The tensor of a term and its dimensions, which are sorted. With `shard` the mesh is not in use."""
        key = (space + "+" * shard, t)
        if key not in self.known:
            dims = tuple(sorted(free(t) - {MESH}))
            self.known[key] = (self._tensor(space, t, dims, shard), dims)
        return self.known[key]

    def _tensor(self, space: str, t: Term, dims: tuple[str, ...], shard: bool) -> str:
        match t[0]:
            case "L":
                return self._letter(space, t, dims)
            case "#":
                return self.spread(space, t, dims, shard)
            case "+" | "*" | "/" | "m":
                name = {"+": "add", "*": "multiply", "/": "divide", "m": "maximum"}[t[0]]
                return self.op(space, name, [self.spread(space, x, dims, shard) for x in t[1:]], dims)
            case "F":
                return self.op(space, t[1], [self.spread(space, t[2], dims, shard)], dims)
            case "C":
                operands = [self.spread(space, x, dims, shard) for x in t[1:]]
                p = self.op(space, "compare", operands, dims, "i1", direction="LT")
                return self.op(space, "convert", (p,), dims)
            case "?":
                operands = [self.spread(space, x, dims, shard) for x in t[2:]]
                inner = [self.spread(space, x, dims, shard) for x in t[1][1:]]
                p = self.op(space, "compare", inner, dims, "i1", direction="LT")
                return self.op(space, "select", (p, *operands), dims)
            case _:
                return self._reduction(space, t, dims, shard)

    def _reduction(self, space: str, t: Term, dims: tuple[str, ...], shard: bool) -> str:
        kind, v, body = {"S": "add", "M": "max"}[t[0]], t[1], t[2]
        if space == "c" and shard and v[0] == "p" and v in free(body):
            local = f"k{v[1:]}p"
            inner = (t[0], local, substitute(body, v, ("p", MESH, local)))
            name = self.spread(space, inner, dims, False)
            rest: dict[str, Any] = {"group": "r", "kind": kind, "seq": len(self.ops["c"])}
            result = self.op(space, "all_reduce", (name,), dims, **rest)
            reduced = Reduced(kind, ("r",), (Tensor("c", name),))
            self.trees[reduced] = self.trees[Tensor("c", name)][1:]
            return result
        whole = tuple(sorted({*dims, v}))
        return self.op(
            space,
            "reduce",
            (self.spread(space, body, whole, shard),),
            dims,
            kind=kind,
            dims=(whole.index(v),),
        )

    def _letter(self, space: str, t: Term, dims: tuple[str, ...]) -> str:
        """The input itself, its transpose, or a view that a fact defines."""
        if space == "s" and t[2] == dims:
            return str(t[1])
        if space == "s" and sorted(map(str, t[2])) == list(dims):
            return self.op("s", "transpose", (t[1],), dims, perm=tuple(t[2].index(v) for v in dims))
        name = self._declare(space, f"{t[1]}{len(self.facts)}", [v[0] for v in dims])
        self.inputs[space][name] = self.types[space][name]
        at = {v: Affine.symbol(f"z{i}") for i, v in enumerate(dims)} | {MESH: Affine.symbol("r")}
        symbols = [(f"z{i}", 0, size_of(v[0], self.sizes)) for i, v in enumerate(dims)]
        left = [at[v] for v in dims]
        if space == "c":
            symbols.insert(0, ("r", 0, self.sizes["r"]))
            left.insert(0, at[MESH])
        right = []
        for entry in t[2]:
            forms = [at[v] for v in variables(entry)]
            if isinstance(entry, str):
                right.append(forms[0])
            elif entry[0] == "p":
                right.append(row_major(forms, [self.sizes["r"], self.sizes["k"]]))
            else:
                right.append(forms[0].shift(self.sizes["u"] if entry[1] else 0))
        self.views[Tensor(space, name)] = len(self.facts)
        self.facts.append(
            Fact(
                Tensor(space, name), Tensor("s", t[1]), Fraction(1), tuple(symbols), tuple(left), tuple(right)
            )
        )
        return name

    def plan(self) -> Plan:
        programs = {}
        for space in "sc":
            ops = tuple(self.ops[space])
            programs[space] = Program(
                self.inputs[space], ops, {}, self.types[space], {o.result: o for o in ops}, {}
            )
        n = self.sizes["r"]
        group = Group("r", ("r",), (tuple(range(n)),), True)
        meets = {o.attrs["seq"]: {"c": o} for o in self.ops["c"] if o.name == "all_reduce"}
        return Plan(
            "fuzz",
            (("r", n),),
            {"r": group},
            (),
            programs["s"],
            {"c": RankClass("c", ((0, n),), programs["c"])},
            (),
            (),
            {},
            {},
            meets,
            "",
            {},
        )


class Direct(Algebra):
    """The checker's stage, whose premises are unfolded from the goal; weakened on demand, to show teeth."""

    def __init__(
        self, sides: Sides, stage: AlgebraStage, weaken: str = "", needed: Mapping[str, int] | None = None
    ) -> None:
        self.sides, self.weaken, self.needed = sides, weaken, dict(needed or {})
        self.premises: list[tuple[ElementDef | ElementHyp, ...]] = []
        super().__init__(Model(sides.plan()), sides.facts, stage, "fuzz")

    def _case(self, case: Case, where: str) -> Any:
        flat = [r for reps in case.reps for r in reps]
        left, right = self.goal_sides(lambda k: str(flat[k]))
        defs: dict[Element, Any] = {}
        keys: dict[Any, Any] = {}
        premises: list[ElementDef | ElementHyp] = []
        work = elements(left) + elements(right)
        while work:
            e = work.pop()
            number, known = self.sides.views.get(e.ref), e in defs
            if known or (
                number is None and not isinstance(e.ref, Reduced) and self.model.producer(e.ref) is None
            ):
                continue
            if len(defs) > MAX_ELEMENTS:
                raise Undecided("too many elements")
            if number is None:
                defs[e] = self.define(e, self._representatives)
                keys[e.ref, tuple(c[0] for c in e.coords)] = None
                premises.append(ElementDef(e))
            else:
                key = (e.ref, tuple(c[0] for c in e.coords))
                defs[e] = self.leaf(self.other_side(e, number, "lhs"))
                keys[key] = (number, "lhs")
                forms = [
                    self._form(t[c[0]], [f"{n}.{r}" for n, r in zip(t[c[0]][1], c[1:], strict=True)])
                    for t, c in zip(self.tree(e.ref), e.coords, strict=True)
                ]
                premises.append(ElementHyp(number, tuple(forms), "lhs"))
            work += elements(defs[e])
        self.premises.append(tuple(premises))
        self._check_widths(keys)
        return Solved(case.file, [], defs, left, right, keys)

    def _check_widths(self, keys: Mapping[Any, Any]) -> None:
        """Notes the width; `confirm` lets the checker itself compare it."""
        if not self.needed:
            free_classes = [c for classes in self.stage.goal_at for c in classes]
            count = Counts(self, keys, hidden=self.weaken == "collapse")
            self.needed = dict(count.result(self.goal_sides(lambda k: f"g{k}"), free_classes))

    def _representatives(self, trees: Sequence[Tree]) -> list[Choice]:
        choices = super()._representatives(trees)
        return [(c, Fraction(1), v) for c, _, v in choices] if self.weaken == "weights" else choices

    def collect(self, kind: str, parts: list[tuple[Choice, Any]]) -> Any:  # type: ignore[override]
        if self.weaken == "max" and kind in ("max", "min") and not any(c[2] for c, _ in parts):
            parts = parts[:1]
        return super().collect(kind, parts)


class Counts(Width):
    """The checker's count without its search for circles; `hidden`: maxima hide products (ADR 0010)."""

    def __init__(self, stage: Algebra, keys: Mapping[Any, Any], hidden: bool) -> None:
        self.stage, self.sources, self.hidden = stage, keys, hidden
        self.known, self.applications = {}, {}

    def _measure(self, head: str, *rest: Any) -> Any:
        found = super()._measure(head, *rest)
        extremum = self.hidden and head in ("max2", "min2", "fold")
        return (found[0], {}, found[2]) if extremum else found


def elements(node: Any) -> list[Element]:
    if isinstance(node, Element):
        return [node]
    return [e for part in node[1:] for e in elements(part)] if isinstance(node, tuple) else []


class Pair:
    """The claim that two terms agree, at given sizes."""

    def __init__(self, left: Term, right: Term, sizes: Sizes, piece: int = 0) -> None:
        self.sizes, self.sides = sizes, Sides(sizes)
        self.dims = dims = tuple(sorted(free(left) | free(right)))
        names = (self.sides.spread("c", left, dims, True), self.sides.spread("s", right, dims, False))
        symbols: list[tuple[str, int, int]] = [("r", 0, sizes["r"])]
        self.goal_at: list[tuple[str, ...]] = [("r",)]
        for i, v in enumerate(dims):
            offset, classes, _ = tree(v[0], sizes)[piece if v[0] == "s" else 0]
            n = size_of("p", sizes) if v[0] == "p" else sizes[classes[0]]
            symbols.append((f"z{i}", offset, offset + n))
            self.goal_at.append(classes)
        index = tuple(Affine.symbol(s) for s, _, _ in symbols)
        self.sides.facts.append(
            Fact(Tensor("c", names[0]), Tensor("s", names[1]), Fraction(1), tuple(symbols), index, index[1:])
        )
        flat = [c for classes in self.goal_at for c in classes]
        self.reduced = False
        self.least = {c: min(sizes[c], max(1, flat.count(c))) for c in CLASSES}

    def stage(self, representatives: Mapping[str, int], premises: Sequence[Any] = ()) -> AlgebraStage:
        classes = {c: (self.sizes[c], representatives[c]) for c in CLASSES}
        reps = patterns(self.goal_at, classes)
        if len(reps) > MAX_CASES:
            raise Undecided("too many cases")
        cases = tuple(Case(r, premises[i] if premises else (), "0001") for i, r in enumerate(reps))
        return AlgebraStage(
            len(self.sides.facts) - 1,
            "fuzz",
            classes,
            tuple(self.sides.trees.items()),
            tuple(self.goal_at),
            cases,
        )

    def width(self, weaken: str = "") -> dict[str, int]:
        """The checker's width of every class."""
        return Direct(self.sides, self.stage(self.least), weaken).needed

    def accepted(self, weaken: str = "", confirm: bool = True) -> bool:
        """Would the checker, weakened as told, and its normaliser call the two sides equal?"""
        needed = self.width(weaken)
        m = self.representatives(needed, int(weaken == "width"))
        self.reduced = any(m[c] < self.sizes[c] for c in CLASSES if needed[c] > 1)
        algebra = Direct(self.sides, self.stage(m), weaken, needed)
        if not all(Normaliser(defs).equal(x, y) for _, _, defs, x, y, _ in algebra.cases):
            return False
        if confirm and not weaken:
            self.confirm(m, algebra.premises)
        return True

    def representatives(self, needed: Mapping[str, int], lower: int = 0) -> dict[str, int]:
        return {c: min(self.sizes[c], max(self.least[c], needed[c] - lower)) for c in CLASSES}

    def confirm(self, m: Mapping[str, int], premises: Sequence[Any]) -> None:
        """The same stage, written out as records, passes the checker itself."""
        algebra = Algebra(Model(self.sides.plan()), self.sides.facts, self.stage(m, premises), "fuzz")
        check_widths(algebra, "fuzz")
        if not all(Normaliser(defs).equal(x, y) for _, _, defs, x, y, _ in algebra.cases):
            raise AssertionError("the checker does not confirm what was unfolded from the goal")
