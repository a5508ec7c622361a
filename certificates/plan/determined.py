"""The input relation determines each element of a plan input at most once.

Otherwise it would say that two elements of the specification are equal (or that some have one value only),
and a theorem about inputs that satisfy it would say less than it seems to, or nothing. The test is
sufficient, not complete: what is not evident is refused, with the pieces named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from certificates.plan.affine import Affine, digits
from certificates.plan.plan import Piece, Relation

from ..errors import FormatError

#: Most positions of one dimension that are compared one by one.
_ENUMERATED = 1 << 20
#: Most pieces of one plan tensor on one class; they are compared pairwise.
_PIECES = 1024


def check_determined(relations: Sequence[Relation]) -> None:
    """Raise :class:`FormatError` unless pieces are evidently injective and pairwise disjoint."""
    pieces: dict[tuple[str, str], list[tuple[str, Piece]]] = {}
    for relation in relations:
        for piece in relation.pieces:
            pieces.setdefault((piece.cls, relation.plan), []).append((relation.spec, piece))
    checked: set[tuple[int, ...]] = set()  # equal layers share their pieces
    for (cls, plan), found in pieces.items():
        same = tuple([id(piece) for _, piece in found])
        if same in checked:
            continue
        checked.add(same)
        if len(found) > _PIECES:
            raise FormatError(f"input relations of {plan} on {cls}: more than {_PIECES} pieces")
        for spec, piece in found:
            loose = undetermined(piece)
            if loose:
                raise FormatError(
                    f"input relation {spec} ~ {plan} on {cls}: different {', '.join(loose)} "
                    "may meet in one element of the plan input"
                )
        for (one, a), (two, b) in itertools.combinations(found, 2):
            if not _disjoint(a, b):
                raise FormatError(
                    f"input relations of {plan} on {cls}: pieces of {one} and {two} may determine "
                    "an element twice"
                )


def undetermined(piece: Piece) -> list[str]:
    """Digits of size > 1 that the piece mentions and its plan index does not evidently determine.

    A form determines its digits if, once known ones are taken away, every coefficient exceeds what all
    smaller terms together can reach (mixed radix).
    """
    sizes = {z: hi for z, (_, hi) in digits(piece.sizes).items() if hi > 1}
    known: set[str] = set()
    progress = True
    while progress:
        progress = False
        for form in piece.plan:
            terms = sorted((abs(c), s) for s, c in form.terms if s in sizes and s not in known)
            reach = [c * (sizes[s] - 1) for c, s in terms]
            if terms and all(c > sum(reach[:i]) for i, (c, _) in enumerate(terms)):
                known |= {s for _, s in terms}
                progress = True
    used = {s for form in (*piece.plan, *piece.spec) for s in form.symbols}
    return sorted((used & set(sizes)) - known)


def _disjoint(a: Piece, b: Piece) -> bool:
    """Some dimension tells the pieces apart: by interval, by residue, or by enumeration."""
    for f, g in zip(a.plan, b.plan, strict=True):
        (lo, hi), (low, high) = f.interval(digits(a.sizes)), g.interval(digits(b.sizes))
        if hi < low or high < lo:
            return True
        step = math.gcd(*(c for _, c in (*f.terms, *g.terms)))
        if step > 1 and (f.const - g.const) % step:
            return True
        lines, others = _lines(f, a), _lines(g, b)
        count = math.prod(map(len, lines)) + math.prod(map(len, others))
        if count <= _ENUMERATED and not set(map(sum, itertools.product(*lines))) & {
            sum(point) for point in itertools.product(*others)
        }:
            return True
    return False


def _lines(form: Affine, piece: Piece) -> list[range]:
    """What each term of a form can be, the constant included as a term."""
    sizes = digits(piece.sizes)
    terms = [range(0, c * sizes[s][1], c) for s, c in form.terms]
    return [range(form.const, form.const + 1), *terms]
