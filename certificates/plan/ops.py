"""The ops of the format and their attributes, named and defined as in the StableHLO specification."""

from __future__ import annotations

#: Attribute kinds of each op: ``int``, ``ints``, ``affines``, ``value`` or a tuple of allowed strings.
_KIND_ADD_MAX_MIN = ("add", "max", "min")


UNARY_FLOAT = frozenset(
    ("exponential", "log", "sqrt", "rsqrt", "sine", "cosine", "tanh", "logistic", "negate", "abs")
)


BINARY_SAME = frozenset(("add", "subtract", "multiply", "maximum", "minimum", "divide", "power"))


ATTRS: dict[str, dict[str, str | tuple[str, ...]]] = {
    "constant": {"value": "value"},
    "iota": {"dim": "int"},
    **{name: {} for name in UNARY_FLOAT | BINARY_SAME | {"not", "and", "or", "convert", "select"}},
    "compare": {"direction": ("EQ", "NE", "LT", "LE", "GT", "GE")},
    "broadcast_in_dim": {"dims": "ints"},
    "reshape": {},
    "transpose": {"perm": "ints"},
    "slice": {"start": "affines", "stride": "ints"},
    "pad": {"low": "ints", "high": "ints"},
    "concatenate": {"dim": "int"},
    "dot_general": {"lhs_batch": "ints", "rhs_batch": "ints", "lhs_contract": "ints", "rhs_contract": "ints"},
    "reduce": {"dims": "ints", "kind": ("add", "max", "min", "and", "or")},
    "gather": {"axis": "int", "batch_dims": "int"},
    "all_reduce": {"group": "str", "kind": _KIND_ADD_MAX_MIN, "seq": "int"},
    "all_gather": {"group": "str", "dim": "int", "seq": "int"},
    "reduce_scatter": {"group": "str", "kind": ("add",), "dim": "int", "seq": "int"},
    "all_to_all": {"group": "str", "split_dim": "int", "concat_dim": "int", "seq": "int"},
}  # fmt: skip


COLLECTIVES = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))


#: One result of a call of a function; no op of the table, it has no meaning of its own.
CALL = "call"
