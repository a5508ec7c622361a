"""S-expressions of SMT-LIB, read: what solvers print, and files of obligations.

Numerals stay words, digit for digit: as Python numbers large decimals would be rounded.
"""

from __future__ import annotations

import sexpdata

Sexp = str | list["Sexp"]


class NotSexp(ValueError):
    """The text is no sequence of S-expressions, or has what cannot be read exactly."""


def read(text: str) -> list[Sexp]:
    """The expressions of a text, in order. Strings keep their quotes."""
    if "\\" in text:
        raise NotSexp("a backslash, which belongs to no SMT-LIB symbol of an obligation")
    parser = sexpdata.Parser(text, string_to=lambda string: f'"{string}"')
    parser.atom = _word
    try:
        found = parser.parse()
    except NotSexp:
        raise
    except Exception as error:  # unbalanced texts end in exceptions of several kinds, without a common root
        raise NotSexp(f"no S-expressions: {type(error).__name__}") from error
    return [_plain(expression) for expression in found]


def _word(word: str) -> str:
    """In place of the parser's own reading of words, which makes numbers of some and Lisp's of ``nil``."""
    if "|" in word and (word.count("|") != 2 or word[0] != "|" or word[-1] != "|"):
        raise NotSexp(f"a quoted symbol with white space or punctuation, near {word}")
    return word


def _plain(expression: object) -> Sexp:
    if isinstance(expression, str):
        return expression
    if isinstance(expression, list):
        return [_plain(part) for part in expression]
    raise NotSexp(f"{type(expression).__name__} is not of SMT-LIB")


def named(text: str) -> list[str]:
    """The names of a file's assertions, in order; each must have one."""
    names = []
    for command in read(text):
        match command:
            case ["assert", ["!", _, ":named", str(name)]]:
                names.append(name)
            case ["assert", *_]:
                raise NotSexp("an assertion without a name")
    return names
