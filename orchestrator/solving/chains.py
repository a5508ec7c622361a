"""Goals that follow by equalities alone: a chain of equal terms leads from one side to the other.

Most stages of a movement are chains, and which premises they need is read off. It is a guess, as a solver's
core is: the file with these premises is solved before anything is claimed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

_ASSERTION = re.compile(r"^\(assert \(! (.*) :named [^ ()]+\)\)$", re.MULTILINE)
#: A variable that has one value.
_RANGE = re.compile(r"\(and \(<= (\d+) (\w+)\) \(< (\w+) (\d+)\)\)")
_SYMBOL = re.compile(r"[^\s()]+")
_INTEGER = re.compile(r"(\d+)|\(- (\d+)\)")


def chain(text: str) -> tuple[int, ...] | None:
    """Positions of premises that make both sides of the goal, a negated equality, equal: the fewest that
    leave variables as they are, else those of a chain where variables with one value are that value.

    ``None`` where there is no such chain.
    """
    *premises, goal = _ASSERTION.findall(text) or [""]
    sides = _sides(goal[5:-1]) if goal.startswith("(not ") else None
    if sides is None:
        return None
    equal = {i: pair for i, premise in enumerate(premises) if (pair := _sides(premise)) is not None}
    path = _path(equal, sides)
    if path is not None:
        return tuple(sorted(path))
    values = _values(premises)
    put = {name: value for name, (value, _) in values.items()}
    if not put:
        return None
    path = _path({i: _at(pair, put) for i, pair in equal.items()}, _at(sides, put))
    if path is None:
        return None
    used = {s for pair in (sides, *(equal[i] for i in path)) for term in pair for s in _SYMBOL.findall(term)}
    return tuple(sorted({*path, *(values[s][1] for s in used & values.keys())}))


def _values(premises: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Variables of one value, and the premise that says so."""
    found: dict[str, tuple[str, int]] = {}
    for i, premise in enumerate(premises):
        said = _RANGE.fullmatch(premise)
        if said is not None and said[2] == said[3] and int(said[4]) == int(said[1]) + 1:
            found[said[2]] = said[1], i
    return found


def _path(equal: Mapping[int, tuple[str, str]], sides: tuple[str, str]) -> list[int] | None:
    """The shortest chain of equalities from one side to the other."""
    beside: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for i, (one, other) in equal.items():
        beside[one].append((other, i))
        beside[other].append((one, i))
    start, end = sides
    came: dict[str, tuple[str, int] | None] = {start: None}
    reached = [start]
    for term in reached:
        for other, i in beside[term]:
            if other not in came:
                came[other] = term, i
                reached.append(other)
    if end not in came:
        return None
    path = []
    step = came[end]
    while step is not None:
        path.append(step[1])
        step = came[step[0]]
    return path


def _sides(term: str) -> tuple[str, str] | None:
    """Both sides of an equality."""
    found = list(_operands(term[3:-1])) if term.startswith("(= ") else []
    return (found[0], found[1]) if len(found) == 2 else None


def _operands(text: str) -> Iterator[str]:
    """Terms that stand one after the other."""
    depth = start = 0
    for i, letter in enumerate(text):
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        elif letter == " " and not depth:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _at(pair: tuple[str, str], values: Mapping[str, str]) -> tuple[str, str]:
    """Both terms with values in place of variables, as they are printed."""
    one, other = (
        term
        if values.keys().isdisjoint(_SYMBOL.findall(term))
        else _folded(_SYMBOL.sub(lambda symbol: values.get(symbol[0], symbol[0]), term))
        for term in pair
    )
    return one, other


def _folded(term: str) -> str:
    """A term whose integers are added and multiplied; the constant of a sum stands last."""
    if not term.startswith("("):
        return term
    head, *operands = _operands(term[1:-1])
    operands = [_folded(o) for o in operands]
    numbers = [n for o in operands if (n := _integer(o)) is not None]
    if head == "*" and len(numbers) == len(operands) == 2:
        return _printed(numbers[0] * numbers[1])
    if head == "+":
        others = [o for o in operands if _integer(o) is None]
        total = sum(numbers)
        operands = [*others, *([_printed(total)] if total or not others else [])]
        if len(operands) == 1:
            return operands[0]
    return f"({' '.join((head, *operands))})"


def _integer(term: str) -> int | None:
    said = _INTEGER.fullmatch(term)
    return None if said is None else int(said[1]) if said[1] else -int(said[2])


def _printed(number: int) -> str:
    return str(number) if number >= 0 else f"(- {-number})"
