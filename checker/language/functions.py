"""Free functions and reserved names of the obligation files."""

from __future__ import annotations

from .ops import ARITY

FUNCTIONS = tuple(ARITY)
"""The free functions, in the order in which a file declares them."""
_WORDS = """
and or not ite xor let par as exists forall match distinct div mod abs to_real to_int is_int true
false assert define declare check push pop exit echo reset divisible select store implies iff if sum
prod int real bool sec csc cot tan asin acos atan sinh cosh pi iand pow2 goal def hyp law bound
range s
"""
RESERVED = frozenset(FUNCTIONS) | frozenset(_WORDS.split())
"""Names that are no symbols: of SMT-LIB and its solvers, and of the premises."""
