"""Records of `proof.json` and `manifest.json` as frozen data: shape only; meaning is the kernel's
business."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from ..errors import need
from ..language.ops import ARITY, OPERATORS
from ..language.proof import (
    MAX_REPS,
    AlgebraStage,
    BoundPart,
    BoundSymbol,
    BoundValue,
    CallStage,
    Case,
    Def,
    Element,
    ElementDef,
    ElementHyp,
    Evident,
    Fact,
    Hyp,
    Law,
    LayoutPremise,
    LayoutStage,
    Lemma,
    Manifest,
    Piece,
    Proof,
    Range,
    Reduced,
    Ref,
    Stage,
    Tensor,
)
from .ghosts import read_ghosts
from .schedule import read_when
from .strict import (
    DIGEST,
    FILE,
    Reader,
    affines,
    anything,
    array,
    integer,
    integers,
    many,
    members,
    name,
    natural,
    one_of,
    optional,
    rational,
    read_json,
    record,
    row,
    symbol,
    text,
)

MAX_TERM, MAX_DIGITS = 200, 64
TERMS = {"lit": 1, "*": 2, **OPERATORS, **ARITY}
"""Heads of a law's terms, with the number of their arguments; `+` has two or more."""


MEMBER = re.compile(
    rf"(plan|proof|witness|about|manifest)\.json|(run|slurm)\.sh|report\.(txt|html)|obligations/{FILE.pattern}\.smt2"
    r"|obligations\.tsv|README\.md|LICENSE|tv-check\.pyz|schemas/[a-z]+\.schema\.json"
)
"""Every member that a bundle may have."""
TAGS = {"bagit.txt", "bag-info.txt", "manifest-sha256.txt"}
DECLARATION = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
reduction = one_of(("add", "max", "min"), "unknown reduction")
file = partial(text, pattern=FILE)


def read_manifest(data: Mapping[str, bytes]) -> Manifest:
    """What the manifests of a bundle say, of which all files are given, or `Malformed`."""

    def reason(value: Any, what: str) -> str:
        need(isinstance(value, str), f"{what}: a text is expected")
        return "".join(c for c in value[:1000] if c.isprintable())

    def texts(value: Any, what: str) -> dict[str, str]:
        listed = members(value, what, "", " ".join(value) if isinstance(value, dict) else "")
        return {name: text(listed[name], what) for name in listed}

    verdict = one_of(("PROVED", "REFUTED", "UNKNOWN"), "unknown verdict")
    document = read_json(data["manifest.json"], "manifest")
    version = document.get("version") if isinstance(document, dict) else None
    own: dict[str, Reader] = {"members": digests} if version == 1 else {"solvers": texts}
    top = record(
        document,
        "manifest",
        version=integer,
        generator=text,
        format=one_of(("trainverify-bundle",), "unknown format"),
        verdicts=array,
        status=one_of(("unsat", "unknown"), "unknown status"),
        **own,
    )
    need(version in (1, 2), "manifest: unknown version")
    root = "manifest.json" if version == 1 else "tagmanifest-sha256.txt"
    listed = top["members"] if version == 1 else _bag(data)
    verdicts = [
        record(v, "manifest: verdict", spec=text, plan=text, verdict=verdict, reason=reason)
        for v in top["verdicts"]
    ]
    return Manifest(
        top["version"],
        top["generator"],
        top["status"],
        listed | {root: sha256(data[root]).hexdigest()},
        tuple((v["spec"], v["plan"], v["verdict"], v["reason"]) for v in verdicts),
        top.get("solvers", {}),
        root,
    )


def digests(value: Any, what: str) -> dict[str, str]:
    """Members with their SHA-256."""
    listed = members(value, what, "plan.json proof.json", " ".join(value) if isinstance(value, dict) else "")
    return {text(m, what, MEMBER): text(digest, f"{what}: {m}", DIGEST) for m, digest in listed.items()}


def _bag(data: Mapping[str, bytes]) -> dict[str, str]:
    """What a bag (RFC 8493) lists: members without `data/`, and the bag's own files."""
    need(data.get("bagit.txt") == DECLARATION, "bagit.txt: no bag of version 1.0")
    lists = []
    for own, place in (("manifest-sha256.txt", "data/([!-~]+)"), ("tagmanifest-sha256.txt", "([a-z0-9.-]+)")):
        need(own in data, f"{own} is missing")
        lines = data[own].decode("ascii", "replace").split("\n")
        found = [re.fullmatch(rf"([0-9a-f]{{64}})  {place}", line) for line in lines[:-1]]
        need(all(found) and lines[-1] == "", f"{own}: a line is not of the form 'SHA-256  NAME'")
        lists.append({m[2]: m[1] for m in found if m})
        need(len(lists[-1]) == len(found), f"{own}: a name occurs twice")
    need(lists[1].keys() == TAGS, f"tagmanifest-sha256.txt lists {', '.join(sorted(TAGS))}")
    return digests(lists[0], "manifest-sha256.txt") | lists[1]


def read_proof(data: bytes, plan: bytes = b"") -> Proof:
    """`proof.json` as records, of the plan in these bytes if it has ghosts, or `Malformed`."""
    document = read_json(data, "proof")
    extra = [k for k in ("lemmas", "when", "ghosts") if isinstance(document, dict) and k in document]
    given = {k: document.pop(k) for k in extra}
    top = record(
        document,
        "proof",
        format=one_of(("trainverify-proof",), "unknown format"),
        version=integer,
        facts=array,
        stages=array,
    )
    need(top["version"] == 1, "proof: unknown version")
    lemmas = []
    for i, entry in enumerate(array(given.get("lemmas", []), "lemmas")):
        what = f"lemma {i}"
        item = record(entry, what, function=symbol, facts=array, stages=array, concludes=anything)
        inside = [_fact(f, f"{what}, fact {n}")[0] for n, f in enumerate(item["facts"])]
        proofs = tuple(_stage(s, f"{what}, stage {n}", inside) for n, s in enumerate(item["stages"]))
        concludes = integers(item["concludes"], f"{what}: concludes", high=len(inside))
        lemmas.append(Lemma(item["function"], tuple(inside), proofs, concludes))
    facts, declared = [], dict[int, int]()
    for i, entry in enumerate(top["facts"]):
        fact, by = _fact(entry, f"fact {i}")
        facts.append(fact)
        if by is not None:
            number = natural(
                next(iter(members(by, f"fact {i}: by", "", "input output").values()), None), f"fact {i}: by"
            )
            need(len(by) == 1, f"fact {i}: by names one relation")
            if "input" in by:
                declared[i] = number
    stages: list[Stage | CallStage] = []
    for i, entry in enumerate(top["stages"]):
        if isinstance(entry, dict) and entry.get("kind") == "call":
            item = record(
                entry,
                f"stage {i}",
                kind=text,
                instance=natural,
                lemma=partial(integer, low=0, high=len(lemmas)),
            )
            stages.append(CallStage(item["lemma"], item["instance"]))
        else:
            stages.append(_stage(entry, f"stage {i}", facts))
    when = read_when(given["when"]) if "when" in given else None
    extended = read_ghosts(given["ghosts"], plan) if "ghosts" in given else None
    return Proof(tuple(facts), declared, tuple(stages), tuple(lemmas), when, extended)


def read_ref(value: Any, what: str) -> Ref:
    """A REF; that the tensor exists is checked by the kernel."""
    if not isinstance(value, str):
        item = record(value, what, kind=reduction, axes=many(text), of=many(text))
        need(bool(item["of"]), f"{what}: a reduced tensor has members")
        return Reduced(item["kind"], item["axes"], tuple(Tensor(*v.partition(":")[::2]) for v in item["of"]))
    space, colon, rest = value.partition(":")
    need(bool(colon), f"{what}: {value[:60]!r} is no tensor")
    if space[:1] == "#":
        fit = rest in ("true", "false") if space == "#b" else space in ("#f", "#i")
        need(
            fit and (space == "#b" or rational(rest, what).denominator == 1 or space == "#f"),
            f"{what}: {value[:60]!r} is no literal",
        )
    return Tensor(space, rest)


def _symbols(value: Any, what: str) -> tuple[tuple[str, int, int], ...]:
    found = many(row(partial(symbol, prefixes="teqv"), integer, integer))(value, what)
    need(all(low < high for _, low, high in found), f"{what}: an empty range")
    need(len({s for s, _, _ in found}) == len(found), f"{what}: a symbol occurs twice")
    return found  # type: ignore[no-any-return]


def _fact(entry: Any, what: str) -> tuple[Fact, Any]:
    item = record(
        entry,
        what,
        lhs=read_ref,
        rhs=read_ref,
        coef=rational,
        symbols=_symbols,
        lhs_index=anything,
        rhs_index=anything,
        by=anything,
    )
    need(item["coef"] != 0, f"{what}: a coefficient of zero")
    index = affines({s for s, _, _ in item["symbols"]})
    return Fact(
        item["lhs"],
        item["rhs"],
        item["coef"],
        item["symbols"],
        index(item["lhs_index"], what),
        index(item["rhs_index"], what),
    ), item["by"]


def title(value: Any, what: str) -> str:
    need("|" not in text(value, what), f"{what}: a title has no bar")
    return str(value)


def _stage(entry: Any, what: str, facts: list[Fact]) -> Stage:
    need(isinstance(entry, dict), f"{what}: an object is expected")
    common: dict[str, Reader] = {
        "kind": text,
        "goal": partial(integer, low=0, high=len(facts)),
        "title": title,
    }
    if entry.get("kind") == "algebra":
        return _algebra(
            record(entry, what, **common, classes=anything, trees=anything, goal_at=anything, cases=array),
            what,
            facts,
        )
    need(entry.get("kind") == "layout", f"{what}: unknown kind")
    item = record(entry, what, **common, file=file, symbols=array, premises=array)
    fresh: list[tuple[str, tuple[int, int] | None]] = []
    for v in item["symbols"]:
        label, low, high = array(v, what, 3)
        text(label, f"{what}: fresh symbol", re.compile(r"[qv][0-9]{1,9}"))
        need(label[0] == "q" or low is high is None, f"{what}: a v symbol has no range")
        fresh.append((label, None if label[0] == "v" else (integer(low, what), integer(high, what, low + 1))))
    known = [s[0] for s in facts[item["goal"]].symbols] + [s for s, _ in fresh]
    need(len(set(known)) == len(known), f"{what}: a symbol occurs twice")
    premises = tuple(
        _layout_premise(p, f"{what}, premise {n}", affines(set(known)), len(facts))
        for n, p in enumerate(item["premises"], 1)
    )
    return LayoutStage(item["goal"], item["title"], item["file"], tuple(fresh), premises)


def _variant(value: Any, what: str, kinds: Mapping[str, tuple[Any, Mapping[str, Reader]]]) -> Any:
    """A premise: the fields besides `k` decide which variant of the kind it is."""
    need(
        isinstance(value, dict) and isinstance(value.get("k"), str),
        f"{what}: an object with a kind is expected",
    )
    for key, (make, fields) in kinds.items():
        if key.partition(" ")[0] == value["k"] and (" " not in key or key.partition(" ")[2] in value):
            item = record(value, what, k=text, **fields)
            return make(*(item[f] for f in fields))
    return need(False, f"{what}: unknown kind {value['k'][:20]!r}")


def _layout_premise(value: Any, what: str, index: Reader, facts: int) -> LayoutPremise:
    place = {"t": read_ref, "at": index}
    found: LayoutPremise = _variant(
        value,
        what,
        {
            "bound sym": (BoundSymbol, {"sym": text}),
            "bound value": (BoundValue, place | {"value": text}),
            "bound": (BoundPart, place | {"arg": index, "part": natural}),
            "def": (Def, place | {"arg": optional(index)}),
            "hyp": (
                Hyp,
                {"facts": partial(integers, high=facts), "at": index, "lift": many(text), "kind": reduction},
            ),
            "range": (Range, {"input": text, "at": index}),
            "evident": (Evident, place),
        },
    )
    return found


def _algebra(item: dict[str, Any], what: str, facts: list[Fact]) -> Stage:
    sizes = many(row(symbol, partial(integer, low=1), partial(integer, low=1)))(
        item["classes"], f"{what}: classes"
    )
    classes = {c: (n, m) for c, n, m in sizes}
    need(len(classes) == len(sizes), f"{what}: a class occurs twice")
    need(all(m <= n for n, m in classes.values()), f"{what}: a class has more representatives than elements")
    names = many(one_of(classes, "unknown class"))
    coords = many(partial(integers, high=10**9))
    forms = affines({f"{c}.{r}" for c, (_, m) in classes.items() for r in range(min(m, MAX_REPS))})
    term = partial(_term, coords=coords)

    def piece(value: Any, where: str) -> Piece:
        """Strides are given where they are not row-major."""
        some: list[Reader] = [natural, names, partial(integers, low=1)]
        offset, inner, *given = row(*some[: max(2, len(array(value, where)))])(value, where)
        need(len(inner) <= MAX_DIGITS, f"{where}: a piece of more than {MAX_DIGITS} classes")
        own = tuple(math.prod(classes[c][0] for c in inner[k + 1 :]) for k in range(len(inner)))
        need(not given or (len(given[0]) == len(inner) and given[0] != own), f"{where}: strides out of place")
        return offset, inner, given[0] if given else own

    def element(value: Any, where: str) -> Element:
        return Element(*row(read_ref, coords)(value, where))

    kinds: dict[str, tuple[Any, Mapping[str, Reader]]] = {
        "def": (ElementDef, {"e": element}),
        "hyp": (
            ElementHyp,
            {
                "fact": partial(integer, low=0, high=len(facts)),
                "at": forms,
                "defines": one_of(("lhs", "rhs"), "defines lhs or rhs, not"),
            },
        ),
        "law": (
            Law,
            {"schema": name, "lhs": term, "rhs": term},
        ),
    }
    cases = []
    for i, entry in enumerate(item["cases"]):
        where = f"{what}, case {i}"
        case = record(entry, where, reps=coords, premises=array, file=file)
        cases.append(
            Case(
                case["reps"],
                tuple(_variant(p, f"{where}, premise {n}", kinds) for n, p in enumerate(case["premises"], 1)),
                case["file"],
            )
        )
    trees = many(row(read_ref, many(many(piece))))(item["trees"], f"{what}: trees")
    goal_at = many(names)(item["goal_at"], f"{what}: goal_at")
    return AlgebraStage(item["goal"], item["title"], classes, trees, goal_at, tuple(cases))


def _term(value: Any, what: str, coords: Reader, depth: int = 0) -> Any:
    """A TERM of a law."""
    head = text(array(value, what)[0] if value else None, f"{what}: term")
    need(depth < MAX_TERM, f"{what}: a term is nested too deeply")
    inner = partial(_term, coords=coords, depth=depth + 1)
    if head == "e":
        return Element(*row(text, read_ref, coords)(value, what)[1:])
    need(head in TERMS, f"{what}: unknown function {head[:20]}")
    count = max(len(value) - 1, 2) if head == "+" else TERMS[head]
    fields = [rational, inner] if head == "*" else [rational] if head == "lit" else [inner] * count
    return row(text, *fields)(value, what)
