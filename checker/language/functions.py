"""Free functions and reserved names of the obligation files."""

from __future__ import annotations

FUNCTIONS = ["mul", "recip", "fexp", "flog", "fsqrt", "frsqrt", "fsin", "fcos", "ftanh", "flogistic", "fabs",
             "fpow", "max2", "min2", "cmp_eq", "cmp_ne", "cmp_lt", "cmp_le", "cmp_gt", "cmp_ge", "nonzero",
             "neg_inf", "pos_inf"]
"""The free functions of docs/certificate.md, in the order in which a file declares them."""
RESERVED = frozenset(FUNCTIONS).union(["and", "or", "not", "ite", "xor", "let", "par", "as", "exists",
                                       "forall", "match", "distinct", "div", "mod", "abs", "to_real",
                                       "to_int", "is_int", "true", "false", "assert", "define", "declare",
                                       "check", "push", "pop", "exit", "echo", "reset", "divisible", "select",
                                       "store", "implies", "iff", "if", "sum", "prod", "int", "real", "bool",
                                       "sec", "csc", "cot", "tan", "asin", "acos", "atan", "sinh", "cosh",
                                       "pi", "iand", "pow2", "goal", "def", "hyp", "law", "bound", "range",
                                       "s"])
