"""Records of `proof.json` as frozen data: shape only; meaning is the kernel's business."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .affine import Affine
from .reader import FUNCTIONS, affine, array, integer, integers, members, need, rational, symbol, text
from .reader import read_json as read_json

DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_TERM = 200
"""Greatest depth of a law's term."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the specification (space "s") or of a rank class."""

    space: str
    value: str

    def __str__(self) -> str:
        return f"{self.space}:{self.value}"


@dataclass(frozen=True, slots=True)
class Reduced:
    """The reduction, over all coordinates of `axes`, of what each rank holds; one member per rank class."""

    kind: str
    axes: tuple[str, ...]
    of: tuple[Tensor, ...]

    def __str__(self) -> str:
        return f"{self.kind} over {' '.join(self.axes)} of ({'; '.join(map(str, self.of))})"


Ref = Tensor | Reduced
Index = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """For all values of the symbols: `lhs[lhs_index] = coef * rhs[rhs_index]`."""

    lhs: Ref
    rhs: Ref
    coef: Fraction
    symbols: tuple[tuple[str, int, int], ...]
    lhs_index: Index
    rhs_index: Index

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {name: (lo, hi) for name, lo, hi in self.symbols}


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a tensor in an algebra stage: per coordinate the piece number and its representatives."""

    ref: Ref
    coords: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class BoundSymbol:
    sym: str


@dataclass(frozen=True, slots=True)
class BoundPart:
    t: Ref
    at: Index
    arg: Index
    part: int


@dataclass(frozen=True, slots=True)
class BoundValue:
    t: Ref
    at: Index
    value: str


@dataclass(frozen=True, slots=True)
class Def:
    t: Ref
    at: Index
    arg: Index | None


@dataclass(frozen=True, slots=True)
class Hyp:
    facts: tuple[int, ...]
    at: Index
    lift: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Range:
    input: str
    at: Index


@dataclass(frozen=True, slots=True)
class ElementDef:
    e: Element


@dataclass(frozen=True, slots=True)
class ElementHyp:
    fact: int
    at: Index
    defines: str


@dataclass(frozen=True, slots=True)
class Law:
    """`lhs = rhs`; terms are Elements, ("lit", q), ("*", q, term) and (operator or function, term, …)."""

    schema: str
    lhs: Any
    rhs: Any


LayoutPremise = BoundSymbol | BoundPart | BoundValue | Def | Hyp | Range
AlgebraPremise = ElementDef | ElementHyp | Law
Piece = tuple[int, tuple[str, ...]]
Tree = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class LayoutStage:
    goal: int
    title: str
    file: str
    symbols: tuple[tuple[str, int, int] | tuple[str, None, None], ...]
    premises: tuple[LayoutPremise, ...]


@dataclass(frozen=True, slots=True)
class Case:
    reps: tuple[tuple[int, ...], ...]
    premises: tuple[AlgebraPremise, ...]
    file: str


@dataclass(frozen=True, slots=True)
class AlgebraStage:
    goal: int
    title: str
    classes: Mapping[str, tuple[int, int]]
    trees: tuple[tuple[Ref, tuple[Tree, ...]], ...]
    goal_at: tuple[tuple[str, ...], ...]
    cases: tuple[Case, ...]


Stage = LayoutStage | AlgebraStage


@dataclass(frozen=True, slots=True)
class Proof:
    """All facts, the input relation that each declared fact cites (by fact number), and all stages."""

    facts: tuple[Fact, ...]
    declared: Mapping[int, int]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says: status of the files, digests of the members, a claim per output relation."""

    generator: str
    status: str
    members: Mapping[str, str]
    verdicts: tuple[tuple[str, str, str, str], ...]


MEMBER = re.compile(r"plan\.json|proof\.json|witness\.json|run\.sh|report\.txt|obligations/[0-9]{4,7}\.smt2")


def read_manifest(data: bytes) -> Manifest:
    """`manifest.json` as a record, or `Malformed`."""
    top = members(read_json(data, "manifest"), "manifest", "format version generator status members verdicts")
    need(top["format"] == "trainverify-bundle" and top["version"] == 1, "manifest: unknown format or version")
    need(top["status"] in ("unsat", "unknown"), "manifest: unknown status")
    need(isinstance(top["members"], dict), "manifest: members")
    listed = {text(name, "manifest: member", MEMBER): text(digest, f"manifest: {name}", DIGEST)
              for name, digest in top["members"].items()}
    need({"plan.json", "proof.json"} <= set(listed), "manifest: plan.json or proof.json is not listed")
    verdicts = []
    for entry in array(top["verdicts"], "manifest: verdicts"):
        item = members(entry, "manifest: verdict", "spec plan verdict reason")
        need(item["verdict"] in ("PROVED", "REFUTED", "UNKNOWN"), "manifest: unknown verdict")
        names = [text(item[k], "manifest: verdict") for k in ("spec", "plan", "verdict")]
        need(isinstance(item["reason"], str), "manifest: reason")
        reason = "".join(c for c in item["reason"][:1000] if c.isprintable())
        verdicts.append((names[0], names[1], names[2], reason))
    return Manifest(text(top["generator"], "manifest: generator"), top["status"], listed, tuple(verdicts))


def read_proof(data: bytes) -> Proof:
    """`proof.json` as records, or `Malformed`."""
    top = members(read_json(data, "proof"), "proof", "format version facts stages")
    need(top["format"] == "trainverify-proof" and top["version"] == 1, "proof: unknown format or version")
    facts, declared = [], dict[int, int]()
    for i, entry in enumerate(array(top["facts"], "facts")):
        item = members(entry, f"fact {i}", "lhs rhs coef symbols lhs_index rhs_index by")
        facts.append(_fact(item, f"fact {i}"))
        if item["by"] is not None:
            by = members(item["by"], f"fact {i}: by", "", "input output")
            need(len(by) == 1, f"fact {i}: by names one relation")
            number = integer(next(iter(by.values())), f"fact {i}: by", 0)
            if "input" in by:
                declared[i] = number
    stages = []
    for i, entry in enumerate(array(top["stages"], "stages")):
        need(isinstance(entry, dict), f"stage {i}: an object is expected")
        read = {"layout": _layout, "algebra": _algebra}.get(str(entry.get("kind")))
        if read is None:
            need(False, f"stage {i}: unknown kind")
        else:
            stages.append(read(entry, f"stage {i}", facts))
    return Proof(tuple(facts), declared, tuple(stages))


def read_ref(value: Any, what: str) -> Ref:
    """A REF; that the tensor exists is checked by the kernel."""
    if isinstance(value, str):
        space, colon, name = value.partition(":")
        need(bool(colon), f"{what}: {value[:60]!r} is no tensor")
        if space[:1] == "#":
            fit = name in ("true", "false") if space == "#b" else space in ("#f", "#i")
            need(fit and (space == "#b" or rational(name, what).denominator == 1 or space == "#f"),
                 f"{what}: {value[:60]!r} is no literal")
        return Tensor(space, name)
    item = members(value, what, "kind axes of")
    need(item["kind"] in ("add", "max", "min"), f"{what}: unknown reduction")
    of = [read_ref(v, what) for v in array(item["of"], what) if isinstance(v, str)]
    need(0 < len(of) == len(item["of"]), f"{what}: members of a reduced tensor are plain tensors")
    axes = tuple(text(a, what) for a in array(item["axes"], what))
    return Reduced(item["kind"], axes, tuple(r for r in of if isinstance(r, Tensor)))


def _symbols(value: Any, what: str, prefixes: str) -> tuple[tuple[str, int, int], ...]:
    found = []
    for entry in array(value, what):
        name, low, high = array(entry, what, 3)
        low = integer(low, what)
        found.append((symbol(name, what, prefixes), low, integer(high, what, low + 1)))
    need(len({s for s, _, _ in found}) == len(found), f"{what}: a symbol occurs twice")
    return tuple(found)


def _fact(item: dict[str, Any], what: str) -> Fact:
    symbols = _symbols(item["symbols"], what, "teqv")
    known = {s: None for s, _, _ in symbols}
    left, right = (tuple(affine(f, what, known) for f in array(item[k], what))
                   for k in ("lhs_index", "rhs_index"))
    coef = rational(item["coef"], what)
    need(coef != 0, f"{what}: a coefficient of zero")
    return Fact(read_ref(item["lhs"], what), read_ref(item["rhs"], what), coef, symbols, left, right)


def _goal(item: dict[str, Any], what: str, facts: list[Fact]) -> tuple[int, str]:
    title = text(item["title"], f"{what}: title")
    need("|" not in title, f"{what}: title")
    return integer(item["goal"], f"{what}: goal", 0, len(facts)), title


def _file(value: Any, what: str) -> str:
    name = text(value, f"{what}: file")
    need(name.isdigit() and len(name) >= 4, f"{what}: no file number")
    return name


def _layout(value: Any, what: str, facts: list[Fact]) -> Stage:
    item = members(value, what, "kind goal title file symbols premises")
    goal, title = _goal(item, what, facts)
    fresh: list[tuple[str, int, int] | tuple[str, None, None]] = []
    for entry in array(item["symbols"], what):
        name, low, high = array(entry, what, 3)
        bounded = isinstance(name, str) and name[:1] == "q"
        need(isinstance(name, str) and name[1:].isdigit() and name[:1] in ("q", "v"),
             f"{what}: bad fresh symbol")
        need(name.isascii() and len(name) < 12, f"{what}: bad fresh symbol")
        if bounded:
            fresh.append((name, integer(low, what), integer(high, what, integer(low, what) + 1)))
        else:
            need(low is None and high is None, f"{what}: a v symbol has no range")
            fresh.append((name, None, None))
    known: dict[str, None] = dict.fromkeys([s[0] for s in facts[goal].symbols] + [s[0] for s in fresh])
    need(len(known) == len(facts[goal].symbols) + len(fresh), f"{what}: a symbol occurs twice")

    def index(v: Any) -> Index:
        return tuple(affine(f, what, known) for f in array(v, what))

    def premise(v: Any, where: str) -> LayoutPremise:
        kind = v.get("k") if isinstance(v, dict) else None
        if kind == "bound" and "sym" in v:
            return BoundSymbol(text(members(v, where, "k sym")["sym"], where))
        if kind == "bound" and "value" in v:
            v = members(v, where, "k t at value")
            return BoundValue(read_ref(v["t"], where), index(v["at"]), text(v["value"], where))
        if kind == "bound":
            v = members(v, where, "k t at arg part")
            return BoundPart(read_ref(v["t"], where), index(v["at"]), index(v["arg"]),
                             integer(v["part"], where, 0))
        if kind == "def":
            v = members(v, where, "k t at arg")
            arg = None if v["arg"] is None else index(v["arg"])
            return Def(read_ref(v["t"], where), index(v["at"]), arg)
        if kind == "hyp":
            v = members(v, where, "k facts at lift kind")
            need(v["kind"] in ("add", "max", "min"), f"{where}: unknown reduction")
            numbers, lift = integers(v["facts"], where, 0, len(facts)), array(v["lift"], where)
            return Hyp(numbers, index(v["at"]), tuple(text(a, where) for a in lift), v["kind"])
        need(kind == "range", f"{where}: unknown kind")
        v = members(v, where, "k input at")
        return Range(text(v["input"], where), index(v["at"]))

    premises = tuple(premise(p, f"{what}, premise {n}") for n,
                     p in enumerate(array(item["premises"], what), 1))
    return LayoutStage(goal, title, _file(item["file"], what), tuple(fresh), premises)


def _algebra(value: Any, what: str, facts: list[Fact]) -> Stage:
    item = members(value, what, "kind goal title classes trees goal_at cases")
    goal, title = _goal(item, what, facts)
    classes: dict[str, tuple[int, int]] = {}
    for entry in array(item["classes"], what):
        name, n, m = array(entry, what, 3)
        need(symbol(name, what) not in classes, f"{what}: class {name} occurs twice")
        n = integer(n, what, 1)
        classes[name] = (n, integer(m, what, 1, n + 1))

    def names(v: Any) -> tuple[str, ...]:
        found = tuple(text(c, what) for c in array(v, what))
        need(all(c in classes for c in found), f"{what}: unknown class")
        return found

    def tree(v: Any) -> Tree:
        return tuple((integer(array(p, what, 2)[0], what, 0), names(p[1])) for p in array(v, what))

    def element(ref: Any, coords: Any) -> Element:
        return Element(read_ref(ref, what), tuple(integers(c, what, 0, 10**9) for c in array(coords, what)))

    def term(v: Any, depth: int) -> Any:
        head = text(array(v, what)[0] if v else None, f"{what}: term")
        need(depth < MAX_TERM, f"{what}: a term is nested too deeply")
        if head == "e":
            return element(*array(v, what, 3)[1:])
        if head == "lit":
            return (head, rational(array(v, what, 2)[1], what))
        if head == "*":
            return (head, rational(array(v, what, 3)[1], what), term(v[2], depth + 1))
        if head in ("neg_inf", "pos_inf"):
            return tuple(array(v, what, 1))
        two = head in ("-", "mul", "fpow", "max2", "min2") or head.startswith("cmp_")
        need(head in ("+", "-", "neg") or head in FUNCTIONS, f"{what}: unknown function {head[:20]}")
        need(len(v) == 3 if two else len(v) > 2 if head == "+" else len(v) == 2,
             f"{what}: {head} has the wrong number of operands")
        return (head, *(term(a, depth + 1) for a in v[1:]))

    known = {f"{c}.{r}": None for c, (_, m) in classes.items() for r in range(min(m, 1000))}

    def premise(v: Any, where: str) -> AlgebraPremise:
        kind = v.get("k") if isinstance(v, dict) else None
        if kind == "def":
            e = array(members(v, where, "k e")["e"], where, 2)
            return ElementDef(element(e[0], e[1]))
        if kind == "hyp":
            v = members(v, where, "k fact at defines")
            need(v["defines"] in ("lhs", "rhs"), f"{where}: defines lhs or rhs")
            at = tuple(affine(f, where, known) for f in array(v["at"], where))
            return ElementHyp(integer(v["fact"], where, 0, len(facts)), at, v["defines"])
        need(kind == "law", f"{where}: unknown kind")
        v = members(v, where, "k schema lhs rhs")
        need(v["schema"] in ("ring", "lattice", "recip"), f"{where}: unknown law")
        return Law(v["schema"], term(v["lhs"], 0), term(v["rhs"], 0))

    cases = []
    for i, entry in enumerate(array(item["cases"], what)):
        where = f"{what}, case {i}"
        case = members(entry, where, "reps premises file")
        premises = [premise(p, f"{where}, premise {n}") for n,
                    p in enumerate(array(case["premises"], where), 1)]
        reps = tuple(integers(r, where, 0, 10**9) for r in array(case["reps"], where))
        cases.append(Case(reps, tuple(premises), _file(case["file"], where)))
    trees = tuple((read_ref(array(t, what, 2)[0], what), tuple(tree(c) for c in array(t[1], what)))
                  for t in array(item["trees"], what))
    goal_at = tuple(names(g) for g in array(item["goal_at"], what))
    return AlgebraStage(goal, title, classes, trees, goal_at, tuple(cases))
