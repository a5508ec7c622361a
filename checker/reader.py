"""The plan reader: plan bytes to a fully type-checked `Plan`, or `Malformed` (obligation 2).

Written from docs/format.md and the StableHLO specification. The data model stands first; nothing in it can be
built from bytes without passing every check below, so later modules may rely on types, ranges and names.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

from .affine import Affine
from .errors import Malformed

MAX_BYTES = 1 << 28
MAX_DIGITS = 18
MAX_RANKS = 1 << 20
SORTS = {"f64": "Real", "f32": "Real", "f16": "Real", "bf16": "Real", "i1": "Bool"} | dict.fromkeys(
    ("i64", "i32", "i16", "i8", "u8"), "Int")
FUNCTIONS = ("mul", "recip", "fexp", "flog", "fsqrt", "frsqrt", "fsin", "fcos", "ftanh", "flogistic", "fabs",
             "fpow",
             "max2", "min2", "cmp_eq", "cmp_ne", "cmp_lt", "cmp_le", "cmp_gt", "cmp_ge", "nonzero", "neg_inf",
             "pos_inf")
"""The free functions of docs/certificate.md, in the order in which a file declares them."""
RESERVED = frozenset(FUNCTIONS).union(re.findall("[a-z_0-9]+", """
    and or not ite xor let par as exists forall match distinct div mod abs to_real to_int is_int true false
    assert define declare check push pop exit echo reset divisible select store implies iff if sum prod int
    real bool sec csc cot tan asin acos atan sinh cosh pi iand pow2 goal def hyp law bound range s"""))
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
RESULT = re.compile(r"%(0|[1-9][0-9]{0,9})")
SYMBOL = re.compile(r"[a-z][a-z0-9_]*")
PRINTABLE = re.compile(r"[ -~]{0,200}")


@dataclass(frozen=True, slots=True)
class Type:
    """A tensor type; `sort` is its SMT-LIB sort."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def sort(self) -> str:
        return SORTS[self.dtype]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `attrs` holds ints, tuples of ints, strings, a tuple of `Affine`s (`start`), and for
    `constant` the `value`: Fraction, bool, "inf", "-inf", or an `Affine` that has a symbol
    (rank-dependent)."""

    result: str
    name: str
    operands: tuple[str, ...]
    type: Type
    attrs: Mapping[str, Any]
    source: tuple[int, int, str] | None


@dataclass(frozen=True, slots=True)
class Program:
    """A program in static single assignment; `types` covers inputs and results, `producers` the results."""

    inputs: Mapping[str, Type]
    ops: tuple[Op, ...]
    outputs: Mapping[str, str]
    types: Mapping[str, Type]
    producers: Mapping[str, Op]


@dataclass(frozen=True, slots=True)
class RankClass:
    """The ranks in `box` (half-open intervals in mesh order), which run `program`."""

    name: str
    box: tuple[tuple[int, int], ...]
    program: Program


@dataclass(frozen=True, slots=True)
class Group:
    """A process group; `factorised` when its rank lists are exactly the fibres of `axes`, order included."""

    name: str
    axes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    factorised: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a relation: digits z0.. of these sizes, forms of the plan and specification index."""

    cls: str
    sizes: tuple[int, ...]
    plan: tuple[Affine, ...]
    spec: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """`plan[...] = coef * spec[...]`, or the reduction over mesh axes of the plan side (`reduce`)."""

    spec: str
    plan: str
    coef: Fraction
    reduce: tuple[str, tuple[str, ...]] | None
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan file. `rendezvous[seq][class]` is the collective of that number in that class."""

    name: str
    mesh: tuple[tuple[str, int], ...]
    groups: Mapping[str, Group]
    sources: tuple[str, ...]
    spec: Program
    classes: Mapping[str, RankClass]
    inputs: tuple[Relation, ...]
    outputs: tuple[Relation, ...]
    ranges: Mapping[str, tuple[int, int]]
    provenance: Mapping[str, Any]
    rendezvous: Mapping[int, Mapping[str, Op]]
    digest: str

    def axis(self, name: str) -> int:
        """Position of a mesh axis."""
        return [a for a, _ in self.mesh].index(name)


# Reading JSON ---------------------------------------------------------------------------------------------


def need(condition: bool, message: str) -> None:
    if not condition:
        raise Malformed(message)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    need(len(result) == len(pairs), "an object has a duplicate key")
    return result


def _integer(text: str) -> int:
    need(len(text.lstrip("-")) <= MAX_DIGITS, "an integer has too many digits")
    return int(text)


def _float(text: str) -> Any:
    raise Malformed(f"floating-point number {text[:20]}")


def read_json(data: bytes, what: str) -> Any:
    """Strict JSON: no duplicate keys, no floats, integers and depth capped."""
    need(len(data) <= MAX_BYTES, f"{what}: larger than {MAX_BYTES} bytes")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_pairs, parse_int=_integer,
                          parse_float=_float, parse_constant=_float)
    except Malformed as error:
        raise Malformed(f"{what}: {error}") from None
    except RecursionError:
        raise Malformed(f"{what}: nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"{what}: no JSON ({str(error)[:80]})") from None


def members(value: Any, what: str, names: str, optional: str = "") -> dict[str, Any]:
    """An object with exactly these members."""
    if not isinstance(value, dict):
        raise Malformed(f"{what}: an object is expected")
    required, known = set(names.split()), set(names.split()) | set(optional.split())
    need(required <= set(value), f"{what}: member {min(required - set(value), default='')} is missing")
    need(set(value) <= known, f"{what}: unknown member {min(set(value) - known, default='')!r:.60}")
    return value


def array(value: Any, what: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{what}: a list is expected")
    need(length is None or len(value) == length, f"{what}: a list of {length} is expected")
    return value


def text(value: Any, what: str, pattern: re.Pattern[str] = PRINTABLE) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Malformed(f"{what}: {str(value)[:60]!r} is no valid text here")
    return value


def integer(value: Any, what: str, low: int = -(10**MAX_DIGITS), high: int = 10**MAX_DIGITS) -> int:
    """An integer with low <= value < high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < high:
        raise Malformed(f"{what}: {str(value)[:60]} is no integer in [{low}, {high})")
    return value


def integers(value: Any, what: str, low: int, high: int) -> tuple[int, ...]:
    return tuple(integer(v, what, low, high) for v in array(value, what))


def interval(value: Any, what: str) -> tuple[int, int]:
    low, high = array(value, what, 2)
    return integer(low, what), integer(high, what, integer(low, what) + 1)


def rational(value: Any, what: str) -> Fraction:
    """A rational in lowest terms, "p" or "p/q"."""
    found = re.fullmatch(r"(-?[0-9]{1,400})(?:/([0-9]{1,400}))?", value) if isinstance(value, str) else None
    if found is None or (found[2] and not int(found[2])):
        raise Malformed(f"{what}: {str(value)[:60]!r} is no rational")
    result = Fraction(int(found[1]), int(found[2] or 1))
    need(str(result) == value, f"{what}: {value[:60]} is not in lowest terms")
    return result


def symbol(value: Any, what: str, prefixes: str = "tevqz") -> str:
    """A name that may stand for an Int constant in SMT-LIB text (docs/certificate.md, Readings 1)."""
    name = text(value, what, SYMBOL)
    taken = name in RESERVED or (name[0] in prefixes and name[1:].isdigit())
    need(not taken, f"{what}: the name {name} is reserved")
    return name


def affine(value: Any, what: str, symbols: Mapping[str, Any]) -> Affine:
    """An AFFINE over known symbols, in its only form."""
    if not isinstance(value, dict):
        return Affine(integer(value, what))
    for name, c in value.items():
        need(integer(c, what) != 0, f"{what}: zero coefficient")
        need(name == "" or name in symbols, f"{what}: unknown symbol {name[:40]!r}")
    need(bool(set(value) - {""}), f"{what}: an object without symbols")
    return Affine.make(value.get("", 0), {s: c for s, c in value.items() if s})


def affines(value: Any, what: str, symbols: Mapping[str, Any], length: int) -> tuple[Affine, ...]:
    return tuple(affine(v, what, symbols) for v in array(value, what, length))


def read_type(value: Any, what: str) -> Type:
    found = re.fullmatch(r"([a-z0-9]{2,4})\[([0-9,]*)\]", value, re.ASCII) if isinstance(value, str) else None
    if found is None or found[1] not in SORTS:
        raise Malformed(f"{what}: {str(value)[:60]!r} is no type")
    dims = found[2].split(",") if found[2] else []
    need(len(dims) <= 16 and all(re.fullmatch(r"[1-9][0-9]{0,11}", d) for d in dims),
         f"{what}: {value[:60]} has a bad dimension")
    return Type(found[1], tuple(map(int, dims)))


# Type rules of the ops ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Context:
    """What the attributes of one op may refer to."""

    axes: Mapping[str, tuple[int, int] | None]
    groups: Mapping[str, Group]
    where: str

    def ok(self, condition: bool, message: str) -> None:
        need(condition, f"{self.where}: {message}")


Types = Sequence[Type]
Rule = Callable[[_Context, Types, Type, dict[str, Any]], Mapping[str, Any]]
UNARY = {"exponential": "fexp", "log": "flog", "sqrt": "fsqrt", "rsqrt": "frsqrt", "sine": "fsin",
         "cosine": "fcos", "tanh": "ftanh", "logistic": "flogistic", "abs": "fabs"}
"""Elementwise ops of one operand that are free functions, with their SMT-LIB names."""
ELEMENTWISE = frozenset((*UNARY, "negate", "not", "convert", "add", "subtract", "multiply", "maximum", 
                         "minimum", "divide", "power", "and", "or", "compare", "select"))
COLLECTIVES = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))


def _same(sorts: str) -> Rule:
    """Operands and result of one type, of one of these sorts."""
    def rule(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
        c.ok(all(x == r for x in xs) and r.sort in sorts, "operands and result must have one suitable type")
        return {}
    return rule


def _convert(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    c.ok(xs[0].shape == r.shape and (xs[0].sort != "Real" or r.sort == "Real"), "no such conversion")
    return {}


def _compare(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    x, y = xs
    c.ok(a["direction"] in ("EQ", "NE", "LT", "LE", "GT", "GE"), "unknown direction")
    c.ok(x.shape == y.shape == r.shape and x.sort == y.sort and r.sort == "Bool", "types do not fit")
    c.ok(x.sort != "Bool" or a["direction"] in ("EQ", "NE"), "booleans have no order")
    return a


def _select(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    c.ok(xs[0] == Type("i1", r.shape) and xs[1] == xs[2] == r, "operands do not fit")
    return a


def _constant(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    v: Any = a["value"]
    if r.sort == "Bool":
        c.ok(v in ("true", "false"), "no boolean literal")
        return {"value": v == "true"}
    if v in ("inf", "-inf"):
        c.ok(r.sort == "Real", "an infinite integer")
        return a
    if isinstance(v, str):
        number = rational(v, c.where)
        c.ok(r.sort == "Real" or number.denominator == 1, "no integer literal")
        return {"value": number}
    form = affine(v, c.where, c.axes)
    return {"value": form if form.terms else Fraction(form.const)}


def _iota(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    c.ok(r.sort != "Bool", "a boolean iota")
    return {"dim": integer(a["dim"], c.where, 0, len(r.shape))}


def _broadcast(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    dims = integers(a["dims"], c.where, 0, len(r.shape))
    c.ok(len(dims) == len(xs[0].shape) and all(d < e for d, e in pairwise(dims)), "bad dims")
    c.ok(all(n in (1, r.shape[d]) for n, d in zip(xs[0].shape, dims, strict=True)), "sizes do not fit")
    c.ok(xs[0].dtype == r.dtype, "dtype changes")
    return {"dims": dims}


def _reshape(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    c.ok(xs[0].size == r.size and xs[0].dtype == r.dtype, "size or dtype changes")
    return a


def _transpose(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    perm = integers(a["perm"], c.where, 0, len(r.shape))
    c.ok(sorted(perm) == list(range(len(xs[0].shape))), "no permutation")
    c.ok(r == Type(xs[0].dtype, tuple(xs[0].shape[p] for p in perm)), "result type does not fit")
    return {"perm": perm}


def _slice(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    x, k = xs[0], len(r.shape)
    start = affines(a["start"], c.where, c.axes, len(x.shape))
    stride = integers(array(a["stride"], c.where, k), c.where, 1, 1 << 40)
    c.ok(len(x.shape) == k and x.dtype == r.dtype, "rank or dtype changes")
    for form, step, n, size in zip(start, stride, x.shape, r.shape, strict=True):
        low, high = form.interval(c.axes)
        c.ok(low >= 0 and high + step * (size - 1) < n, "the slice leaves its operand")
    return {"start": start, "stride": stride}


def _pad(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    x, v = xs
    low, high = (integers(array(a[k], c.where, len(x.shape)), c.where, 0, 1 << 40) for k in ("low", "high"))
    c.ok(v == Type(x.dtype, ()), "the padding value must be a scalar of the operand's dtype")
    c.ok(r == Type(x.dtype, tuple(map(sum, zip(low, x.shape, high, strict=True)))), "bad result type")
    return {"low": low, "high": high}


def _concatenate(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    dim = integer(a["dim"], c.where, 0, len(r.shape))
    c.ok(bool(xs) and all(len(x.shape) == len(r.shape) for x in xs), "ranks differ")
    c.ok(all(_resize(x, dim, r.shape[dim]) == r for x in xs), "types do not fit")
    c.ok(sum(x.shape[dim] for x in xs) == r.shape[dim], "the sizes do not add up")
    return {"dim": dim}


def _resize(x: Type, dim: int, size: int) -> Type:
    return Type(x.dtype, (*x.shape[:dim], size, *x.shape[dim + 1:]))


def _dot(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    x, y = xs
    lb, lc = (integers(a[k], c.where, 0, len(x.shape)) for k in ("lhs_batch", "lhs_contract"))
    rb, rc = (integers(a[k], c.where, 0, len(y.shape)) for k in ("rhs_batch", "rhs_contract"))
    c.ok(all(len(set(d)) == len(d) for d in (lb + lc, rb + rc)), "a dimension is named twice")
    c.ok([x.shape[d] for d in lb] == [y.shape[d] for d in rb], "batch sizes differ")
    c.ok([x.shape[d] for d in lc] == [y.shape[d] for d in rc], "contracting sizes differ")
    shape = [x.shape[d] for d in lb]
    shape += [n for d, n in enumerate(x.shape) if d not in lb + lc]
    shape += [n for d, n in enumerate(y.shape) if d not in rb + rc]
    c.ok(tuple(shape) == r.shape and x.sort == y.sort == r.sort != "Bool", "result type does not fit")
    return {"lhs_batch": lb, "rhs_batch": rb, "lhs_contract": lc, "rhs_contract": rc}


def _reduce(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    dims = integers(a["dims"], c.where, 0, len(xs[0].shape))
    c.ok(list(dims) == sorted(set(dims)), "dims must increase")
    c.ok(a["kind"] in (("and", "or") if r.sort == "Bool" else ("add", "max", "min")), "unknown kind")
    kept = tuple(n for d, n in enumerate(xs[0].shape) if d not in dims)
    c.ok(r == Type(xs[0].dtype, kept), "result type does not fit")
    return {"dims": dims, "kind": a["kind"]}


def _gather(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    x, idx = xs
    axis = integer(a["axis"], c.where, 0, len(x.shape))
    batch = integer(a["batch_dims"], c.where, 0, min(axis, len(idx.shape)) + 1)
    c.ok(idx.sort == "Int" and x.shape[:batch] == idx.shape[:batch], "the index tensor does not fit")
    shape = x.shape[:axis] + idx.shape[batch:] + x.shape[axis + 1:]
    c.ok(r == Type(x.dtype, shape), "result type does not fit")
    return {"axis": axis, "batch_dims": batch}


def _collective(c: _Context, xs: Types, r: Type, a: dict[str, Any]) -> Mapping[str, Any]:
    x = xs[0]
    c.ok(a["group"] in c.groups, "unknown process group")
    n = len(c.groups[a["group"]].ranks[0])
    attrs: dict[str, Any] = {"group": a["group"], "seq": integer(a["seq"], c.where)}
    if "kind" in a:
        kinds = ("add",) if "dim" in a else ("add", "max", "min")
        c.ok(a["kind"] in kinds and x.sort != "Bool", "unknown kind")
        attrs["kind"] = a["kind"]
    for key in ("dim", "split_dim", "concat_dim"):
        if key in a:
            attrs[key] = integer(a[key], c.where, 0, len(x.shape))
    expected = x
    if "split_dim" in a or ("dim" in a and "kind" in a):
        dim = attrs["dim" if "dim" in a else "split_dim"]
        c.ok(x.shape[dim] % n == 0, "the group does not divide the dimension")
        expected = _resize(x, dim, x.shape[dim] // n)
    if "concat_dim" in a or ("dim" in a and "kind" not in a):
        dim = attrs["dim" if "dim" in a else "concat_dim"]
        expected = _resize(expected, dim, expected.shape[dim] * n)
    c.ok(r == expected, "result type does not fit")
    return attrs


RULES: Mapping[str, tuple[int, str, Rule]] = {
    "constant": (0, "value", _constant), "iota": (0, "dim", _iota),
    **{name: (1, "", _same("Real Int" if name == "abs" else "Real")) for name in UNARY},
    "negate": (1, "", _same("Real Int")), "not": (1, "", _same("Bool")), "convert": (1, "", _convert),
    **{name: (2, "", _same("Real Int")) for name in ("add", "subtract", "multiply", "maximum", "minimum")},
    **{name: (2, "", _same("Real")) for name in ("divide", "power")},
    **{name: (2, "", _same("Bool")) for name in ("and", "or")},
    "compare": (2, "direction", _compare), "select": (3, "", _select),
    "broadcast_in_dim": (1, "dims", _broadcast), "reshape": (1, "", _reshape),
    "transpose": (1, "perm", _transpose), "slice": (1, "start stride", _slice), "pad": (2, "low high", _pad),
    "concatenate": (-1, "dim", _concatenate), "reduce": (1, "dims kind", _reduce),
    "dot_general": (2, "lhs_batch rhs_batch lhs_contract rhs_contract", _dot),
    "gather": (2, "axis batch_dims", _gather),
    "all_reduce": (1, "group kind seq", _collective), "all_gather": (1, "group dim seq", _collective),
    "reduce_scatter": (1, "group kind dim seq", _collective),
    "all_to_all": (1, "group split_dim concat_dim seq", _collective),
}
"""Per op: number of operands (-1: any), attributes, type rule."""


# Reading a plan -------------------------------------------------------------------------------------------


def read_plan(data: bytes) -> Plan:
    """The plan in these (uncompressed) bytes, everything in it checked; else `Malformed`."""
    top = members(read_json(data, "plan"), "plan", "format version name mesh groups sources specification "
                  "classes inputs outputs ranges provenance")
    need(top["format"] == "trainverify-plan" and top["version"] == 1, "plan: unknown format or version")
    mesh = tuple((symbol(array(m, "mesh", 2)[0], "mesh"), integer(m[1], "mesh", 1, MAX_RANKS + 1))
                 for m in array(top["mesh"], "mesh"))
    need(len(dict(mesh)) == len(mesh) and math.prod(n for _, n in mesh) <= MAX_RANKS, "mesh: bad axes")
    groups = _groups(top["groups"], mesh)
    sources = tuple(text(s, "sources") for s in array(top["sources"], "sources"))
    spec = _program(top["specification"], "specification", {}, {}, len(sources))
    classes: dict[str, RankClass] = {}
    for entry in array(top["classes"], "classes"):
        item = members(entry, "class", "name box program")
        name = symbol(item["name"], "class name", "tevqz")
        box = members(item["box"], f"class {name}: box", " ".join(a for a, _ in mesh))
        bounds = tuple(interval(box[a], f"class {name}: box") for a, _ in mesh)
        need(all(lo >= 0 and hi <= n for (lo, hi), (_, n) in zip(bounds, mesh, strict=True)),
             f"class {name}: bad box")
        need(name not in classes, f"class {name} occurs twice")
        axes = {a: b for (a, _), b in zip(mesh, bounds, strict=True)}
        program = _program(item["program"], f"class {name}", axes, groups, len(sources))
        classes[name] = RankClass(name, bounds, program)
    ranges = {n: interval(r, f"range of {n[:60]}") for n, r in members(top["ranges"], "ranges", "", " ".join(
        n for n, t in spec.inputs.items() if t.sort == "Int")).items()}
    provenance = top["provenance"]
    need(isinstance(provenance, dict), "provenance: an object is expected")
    plan = Plan(text(top["name"], "name"), mesh, groups, sources, spec, classes, (), (), ranges, provenance,
                _rendezvous(classes), hashlib.sha256(data).hexdigest())
    _tile(plan)
    _meet(plan)
    relations = [tuple(_relation(r, plan, side, f"{side} relation {i}")
                       for i, r in enumerate(array(top[side], side))) for side in ("inputs", "outputs")]
    return replace(plan, inputs=relations[0], outputs=relations[1])


def _groups(value: Any, mesh: tuple[tuple[str, int], ...]) -> dict[str, Group]:
    groups = {}
    world = math.prod(n for _, n in mesh)
    known = " ".join(value) if isinstance(value, dict) else ""
    for name, entry in members(value, "groups", "", known).items():
        what = f"group {name[:60]!r}"
        item = members(entry, what, "axes ranks")
        axes = tuple(text(a, what) for a in array(item["axes"], what))
        need(set(axes) <= set(dict(mesh)) and len(set(axes)) == len(axes), f"{what}: bad axes")
        ranks = tuple(integers(r, what, 0, world) for r in array(item["ranks"], what))
        need(sorted(r for line in ranks for r in line) == list(range(world)), f"{what}: no partition")
        need(len({len(line) for line in ranks}) == 1, f"{what}: lists of different lengths")
        groups[name] = Group(name, axes, ranks, bool(axes) and set(ranks) == set(fibres(mesh, axes)))
    return groups


def fibres(mesh: tuple[tuple[str, int], ...], axes: Sequence[str]) -> list[tuple[int, ...]]:
    """The rank lists of a factorised group: members in row-major order of the axes as listed."""
    sizes = dict(mesh)
    stride, strides = 1, dict[str, int]()
    for name, n in reversed(mesh):
        strides[name], stride = stride, stride * n
    rest = [a for a, _ in mesh if a not in axes]
    steps = [[i * strides[a] for i in range(sizes[a])] for a in axes]
    bases = product(*([i * strides[a] for i in range(sizes[a])] for a in rest))
    return [tuple(sum(base) + sum(step) for step in product(*steps)) for base in bases]


def _program(value: Any, what: str, axes: Mapping[str, tuple[int, int] | None], groups: Mapping[str, Group],
             sources: int) -> Program:
    item = members(value, what, "inputs ops outputs")
    types: dict[str, Type] = {}
    for entry in array(item["inputs"], what):
        name = text(array(entry, what, 2)[0], f"{what}: input name", NAME)
        need(name not in types, f"{what}: input {name} occurs twice")
        types[name] = read_type(entry[1], f"{what}: input {name}")
    inputs = dict(types)
    ops: dict[str, Op] = {}
    for entry in array(item["ops"], what):
        result = text(array(entry, f"{what}: op", 6)[0], f"{what}: result", RESULT)
        name = str(entry[1])[:60]
        where = f"{what}: op {result} {name}"
        need(entry[1] in RULES, f"{where}: unknown op")
        need(result not in types, f"{where}: assigned twice")
        need(name not in COLLECTIVES or bool(groups), f"{where}: unknown process group")
        arity, attributes, rule = RULES[name]
        operands = tuple(text(o, where) for o in array(entry[2], where, arity if arity >= 0 else None))
        need(all(o in types for o in operands), f"{where}: an operand is not defined before it")
        kind = read_type(entry[3], where)
        attrs = rule(_Context(axes, groups, where), [types[o] for o in operands], kind,
                     members(entry[4], where, attributes))
        source = None
        if entry[5] is not None:
            file, line, function = array(entry[5], where, 3)
            source = (integer(file, where, 0, sources), integer(line, where, 0), text(function, where))
        types[result] = kind
        ops[result] = Op(result, name, operands, kind, attrs, source)
    outputs: dict[str, str] = {}
    for entry in array(item["outputs"], what):
        name = text(array(entry, what, 2)[0], f"{what}: output name", NAME)
        need(name not in outputs, f"{what}: output {name} occurs twice")
        outputs[name] = text(entry[1], f"{what}: output {name}")
        need(entry[1] in types, f"{what}: output {name} has no value")
    return Program(inputs, tuple(ops.values()), outputs, types, ops)


def _tile(plan: Plan) -> None:
    """The boxes of the rank classes tile the mesh: pairwise disjoint, and as many ranks as the mesh has."""
    boxes = [c.box for c in plan.classes.values()]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = any(x[1] <= y[0] or y[1] <= x[0] for x, y in zip(a, b, strict=True))
            need(apart, "two rank classes share a rank")
    total = sum(math.prod(hi - lo for lo, hi in box) for box in boxes)
    need(total == math.prod(n for _, n in plan.mesh), "the rank classes do not cover the mesh")


def _rendezvous(classes: Mapping[str, RankClass]) -> dict[int, dict[str, Op]]:
    found: dict[int, dict[str, Op]] = {}
    for cls in classes.values():
        for op in cls.program.ops:
            if op.name in COLLECTIVES:
                here = found.setdefault(op.attrs["seq"], {})
                need(cls.name not in here, f"class {cls.name}: op {op.result}: its seq occurs twice")
                here[cls.name] = op
    return found


def _meet(plan: Plan) -> None:
    """Every rendezvous: one op, group, attributes and operand type, and whole groups take part."""
    partial = [(seq, ops) for seq, ops in plan.rendezvous.items() if len(ops) < len(plan.classes)]
    for seq, ops in plan.rendezvous.items():
        shapes = {(o.name, tuple(sorted(o.attrs.items())), plan.classes[c].program.types[o.operands[0]])
                  for c, o in ops.items()}
        need(len(shapes) == 1, f"rendezvous {seq}: classes disagree on op, group, attributes or operand type")
    if not partial:
        return
    owner = [""] * math.prod(n for _, n in plan.mesh)
    for cls in plan.classes.values():
        for point in product(*(range(lo, hi) for lo, hi in cls.box)):
            rank = 0
            for i, (_, n) in zip(point, plan.mesh, strict=True):
                rank = rank * n + i
            owner[rank] = cls.name
    for seq, ops in partial:
        lines = {frozenset(owner[r] in ops for r in line)
                 for line in plan.groups[next(iter(ops.values())).attrs["group"]].ranks}
        need(all(len(line) == 1 for line in lines), f"rendezvous {seq}: a member of a group is absent")


def _relation(value: Any, plan: Plan, side: str, what: str) -> Relation:
    item = members(value, what, "spec plan coef reduce pieces")
    spec = text(item["spec"], what, NAME)
    name = text(item["plan"], what, NAME)
    known = getattr(plan.spec, side)
    need(spec in known, f"{what}: the specification has no such {side[:-1]} {spec[:60]}")
    target = plan.spec.types[spec if side == "inputs" else plan.spec.outputs[spec]]
    coef = rational(item["coef"], what)
    need(coef != 0 and (coef == 1 or target.sort == "Real"), f"{what}: bad coefficient")
    reduce, gone = None, tuple[str, ...]()
    if item["reduce"] is not None:
        kind, axes = array(item["reduce"], what, 2)
        gone = tuple(a for a, _ in plan.mesh if a in array(axes, what))
        need(bool(gone) and list(gone) == axes, f"{what}: reduced axes must be mesh axes in mesh order")
        need(kind in ("add", "max", "min") and target.sort != "Bool", f"{what}: unknown reduction")
        reduce = (kind, gone)
    pieces = []
    for entry in array(item["pieces"], what):
        piece = members(entry, f"{what}: piece", "class sizes plan spec")
        need(piece["class"] in plan.classes, f"{what}: unknown class")
        cls = plan.classes[piece["class"]]
        need(name in getattr(cls.program, side), f"{what}: class {cls.name} has no {side[:-1]} {name[:60]}")
        local = cls.program.types[name if side == "inputs" else cls.program.outputs[name]]
        need(local.sort == target.sort, f"{what}: the sorts of {spec[:60]} and {name[:60]} differ")
        sizes = integers(piece["sizes"], what, 1, 1 << 40)
        need(len(sizes) <= 32, f"{what}: too many digits")
        digits = {f"z{i}": (0, n) for i, n in enumerate(sizes)}
        symbols = digits | {a: b for (a, _), b in zip(plan.mesh, cls.box, strict=True) if a not in gone}
        forms = affines(piece["plan"], what, digits, len(local.shape))
        images = affines(piece["spec"], what, symbols, len(target.shape))
        for form, n in zip(forms + images, local.shape + target.shape, strict=True):
            low, high = form.interval(symbols)
            need(low >= 0 and high < n, f"{what}: a piece in class {cls.name} leaves its tensor")
        pieces.append(Piece(cls.name, sizes, forms, images))
    need(bool(pieces), f"{what}: no pieces")
    return Relation(spec, name, coef, reduce, tuple(pieces))
