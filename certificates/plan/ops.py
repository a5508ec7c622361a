"""The ops of the format, a row each, named and defined as in the StableHLO specification.

What depends on an op and not on its place in a program derives from its row: attributes and number of
operands (reader, schema, builders), sorts (type rules), the term of one element in layout and algebra
obligations (both writers), the free functions of the obligations and so the reserved names, and what is known
of signs. The checker has a table of its own; a test compares the two. ``docs/extending.md`` shows how to add
a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from .types import Sort

#: ``int``, ``ints``, ``str``, ``affines``, ``value``, or the strings that are allowed.
AttrKind = str | tuple[str, ...]
#: The value of one element; ``a b c`` are the operands' elements, heads are SMT-LIB's or free functions.
Term = str | tuple["Term", ...]
#: What SMT-LIB knows of itself; every other head of a term is a free function of reals.
_THEORY = frozenset(("+", "-", "*", "ite", "not", "and", "or", "=", "<", "<=", ">", ">=", "to_real"))
_LETTERS = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Row:
    """``operands`` is their number, ``None`` for one or more; ``terms`` has (layout, algebra) by variant.

    ``sorts`` are those of operands and result where all have one type. ``sign`` tells if results are never
    negative: ``always``, or ``kept`` if no operand has a negative element on any rank. ``defined`` is the
    domain of a partial function, outside of which values mean nothing: reports name what may leave it. An op
    without terms moves data, sums, or joins ranks; the writers have a rule for each.
    """

    name: str
    operands: int | None = 1
    attrs: Mapping[str, AttrKind] = field(default_factory=dict)
    sorts: tuple[Sort, ...] = ()
    terms: Mapping[str, tuple[Term, Term]] = field(default_factory=dict)
    sign: Literal["", "always", "kept"] = ""
    defined: str = ""
    elementwise: bool = False
    collective: bool = False
    message: bool = False


_REAL: tuple[Sort, ...] = ("Real",)
_NUMBER: tuple[Sort, ...] = ("Real", "Int")
_TRUTH: tuple[Sort, ...] = ("Bool",)


def _pointwise(
    name: str,
    sorts: tuple[Sort, ...],
    layout: Term,
    algebra: Term | None = None,
    sign: Literal["", "always", "kept"] = "",
    defined: str = "",
) -> Row:
    """An elementwise op of one type; the algebra has the layout's term unless it says another one."""
    count = sum(letter in set(_leaves(layout)) for letter in _LETTERS)
    terms = {"": (layout, algebra or layout)}
    return Row(name, count, {}, sorts, terms, sign, defined, elementwise=True)


def _leaves(term: Term) -> Iterator[str]:
    if isinstance(term, str):
        yield term
    else:
        for part in term:
            yield from _leaves(part)


def _collective(name: str, sign: Literal["", "kept"] = "kept", **attrs: AttrKind) -> Row:
    return Row(name, attrs={"group": "str", **attrs, "seq": "int"}, sign=sign, collective=True)


_COMPARE: dict[str, Term] = {
    "EQ": ("=", "a", "b"),
    "NE": ("not", ("=", "a", "b")),
    "LT": ("<", "a", "b"),
    "LE": ("<=", "a", "b"),
    "GT": (">", "a", "b"),
    "GE": (">=", "a", "b"),
}
#: By the sorts of operand and result.
_CONVERT: dict[str, tuple[Term, Term]] = {
    "Real Real": ("a", "a"),
    "Int Int": ("a", "a"),
    "Bool Bool": ("a", "a"),
    "Int Real": (("to_real", "a"), "a"),
    "Bool Real": (("ite", "a", "1.0", "0.0"), "a"),
    "Bool Int": (("ite", "a", "1", "0"), "a"),
    "Int Bool": (("not", ("=", "a", "0")), ("nonzero", "a")),
}
_DOT: dict[str, AttrKind] = dict.fromkeys(("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"), "ints")

#: Free functions stand in obligation files in the order in which rows mention them first.
ROWS = (
    _pointwise("add", _NUMBER, ("+", "a", "b"), sign="kept"),
    _pointwise("subtract", _NUMBER, ("-", "a", "b")),
    _pointwise("negate", _NUMBER, ("-", "a")),
    _pointwise("multiply", _NUMBER, ("mul", "a", "b"), sign="kept"),
    _pointwise("divide", _REAL, ("mul", "a", ("recip", "b")), defined="b is not 0"),
    _pointwise("exponential", _REAL, ("fexp", "a"), sign="always"),
    _pointwise("log", _REAL, ("flog", "a"), defined="a > 0"),
    _pointwise("sqrt", _REAL, ("fsqrt", "a"), sign="always", defined="a >= 0"),
    _pointwise("rsqrt", _REAL, ("frsqrt", "a"), defined="a > 0"),
    _pointwise("sine", _REAL, ("fsin", "a")),
    _pointwise("cosine", _REAL, ("fcos", "a")),
    _pointwise("tanh", _REAL, ("ftanh", "a")),
    _pointwise("logistic", _REAL, ("flogistic", "a"), sign="always"),
    _pointwise("erf", _REAL, ("ferf", "a")),
    _pointwise("abs", _NUMBER, ("fabs", "a"), sign="always"),
    _pointwise("power", _REAL, ("fpow", "a", "b"), defined="a > 0"),
    _pointwise("maximum", _NUMBER, ("ite", (">=", "a", "b"), "a", "b"), ("max2", "a", "b"), sign="kept"),
    _pointwise("minimum", _NUMBER, ("ite", ("<=", "a", "b"), "a", "b"), ("min2", "a", "b"), sign="kept"),
    _pointwise("and", _TRUTH, ("and", "a", "b"), ("mul", "a", "b")),
    _pointwise("or", _TRUTH, ("or", "a", "b"), ("-", ("+", "a", "b"), ("mul", "a", "b"))),
    _pointwise("not", _TRUTH, ("not", "a"), ("-", "1.0", "a")),
    Row("compare", 2, {"direction": tuple(_COMPARE)}, elementwise=True,
        terms={d: (term, (f"cmp_{d.lower()}", "a", "b")) for d, term in _COMPARE.items()}),
    Row("select", 3, elementwise=True,
        terms={"": (("ite", "a", "b", "c"), ("+", "c", ("mul", "a", ("-", "b", "c"))))}),
    Row("convert", elementwise=True, sign="kept", terms=_CONVERT),
    Row("constant", 0, {"value": "value"}),
    Row("iota", 0, {"dim": "int"}),
    Row("broadcast_in_dim", attrs={"dims": "ints"}, sign="kept"),
    Row("reshape", sign="kept"),
    Row("transpose", attrs={"perm": "ints"}, sign="kept"),
    Row("slice", attrs={"start": "affines", "stride": "ints"}, sign="kept"),
    Row("pad", 2, {"low": "ints", "high": "ints"}, sign="kept"),
    Row("concatenate", None, {"dim": "int"}, sign="kept"),
    Row("dot_general", 2, _DOT, sign="kept"),
    Row("reduce", attrs={"dims": "ints", "kind": ("add", "max", "min", "and", "or")}, sign="kept"),
    Row("gather", 2, {"axis": "int", "batch_dims": "int"}, defined="b is an index of a"),
    _collective("all_reduce", kind=("add", "max", "min")),
    _collective("all_gather", dim="int"),
    _collective("reduce_scatter", kind=("add",), dim="int"),
    _collective("all_to_all", split_dim="int", concat_dim="int"),
    Row("send", attrs={"seq": "int", "to": "affines"}, sign="kept", message=True),
    Row("recv", 0, {"seq": "int", "from": "affines"}, sign="kept", message=True),
)  # fmt: skip
OPS: dict[str, Row] = {row.name: row for row in ROWS}
ATTRS: dict[str, Mapping[str, AttrKind]] = {row.name: row.attrs for row in ROWS}
COLLECTIVES = frozenset(row.name for row in ROWS if row.collective)
#: Between two ranks; collectives have a group.
MESSAGES = frozenset(row.name for row in ROWS if row.message)
ELEMENTWISE = frozenset(row.name for row in ROWS if row.elementwise)
#: Ops on packed rows, which are lowered to the others: operands and attributes. The last operand is an
#: order, but of ``sort_rows``: keys.
PACKED: Mapping[str, tuple[int, Mapping[str, AttrKind]]] = {
    "sort_rows": (1, {"count": "int"}),
    "ship_rows": (1, {"group": "str", "seq": "int"}),
    "regroup_rows": (1, {}),
    "pack": (2, {}),
    "ship": (2, {"seq": "int"}),
    "regroup": (2, {}),
    "ungroup": (2, {}),
    "ship_back": (2, {"seq": "int"}),
    "unpack": (2, {}),
    "ragged_dot": (3, {"contract": "int"}),
    "ragged_outer": (3, {}),
}
#: One result of a call of a function; no op of the table, it has no meaning of its own.
CALL = "call"


def functions_of(term: Term) -> Iterator[tuple[str, int]]:
    """The free functions of a term with their numbers of arguments, outermost first."""
    if isinstance(term, tuple):
        head, *arguments = term
        if isinstance(head, str) and head not in _THEORY:
            yield head, len(arguments)
        for argument in arguments:
            yield from functions_of(argument)


def _functions() -> dict[str, int]:
    found: dict[str, int] = {}
    for row in ROWS:
        for terms in row.terms.values():
            for term in terms:
                found.update(functions_of(term))
    return found | {"neg_inf": 0, "pos_inf": 0}


#: Free functions of the obligations by number of arguments, in the order of their declarations.
FUNCTIONS: dict[str, int] = _functions()

_T = TypeVar("_T")


def fill(term: Term, operands: Sequence[_T]) -> object:
    """The term with operands for its letters."""
    if isinstance(term, tuple):
        return tuple(fill(part, operands) for part in term)
    return operands[_LETTERS.index(term)] if term in _LETTERS else term
