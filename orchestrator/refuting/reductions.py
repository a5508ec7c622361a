"""Edits of reductions: a collective left out, put in, over another group, before or after a sum, or in place
of what looks like one on a single rank.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Group, Plan
from certificates.plan.program import Attr, Op
from certificates.plan.type_rules import mismatch
from certificates.plan.types import format_rational

from .edits import FRESH, Edit, Kind, followed, next_seq, replaced
from .sites import Site, Sites
from .standing import Standings

_KINDS = {"add": "max", "max": "add", "min": "max"}
#: Ops of which the result is a sum over ranks if an operand is one.
LINEAR = frozenset(
    ["multiply", "divide", "negate", "convert", "reshape", "transpose", "broadcast_in_dim", "concatenate",
     "slice", "pad"]
)  # fmt: skip
Rewrite = Callable[[str, Op, int], Sequence[Op] | None]


class Reductions:
    """Proposes edits of the reductions of one plan, each where the type rules allow it."""

    def __init__(self, sites: Sites, standings: Standings) -> None:
        self._sites, self._standings = sites, standings
        self._plan: Plan = sites.plan
        self._groups = groups_of(self._plan)
        self._seq = next_seq(self._plan)

    def _edit(self, kind: Kind, what: str, site: Site, new: Rewrite, after: bool = False) -> Iterator[Edit]:
        rewrites = replaced(site.ops, new)
        if rewrites is None or not all(self._typed(cls, ops) for cls, ops in rewrites.items()):
            return
        if all(rewrites[cls][op.out] == (op,) for cls, op in site.ops):
            return  # a rule of several ops may leave each as it is
        places = tuple((cls, op.out) for cls, op in site.ops)
        groups = {
            op.text("group"): self._groups[op.text("group")]
            for mine in rewrites.values() for ops in mine.values() for op in ops
            if op.name in COLLECTIVES and op.text("group") not in self._plan.groups
        }  # fmt: skip
        yield Edit(kind, what, places, rewrites, groups, after)

    def _typed(self, cls: str, mine: dict[str, tuple[Op, ...]]) -> bool:
        """Do the new ops follow the type rules, and keep the types of results?"""
        box = self._plan.by_class[cls].box
        for out, ops in mine.items():
            types = dict(self._sites.types[cls])
            for op in ops:
                if any(v not in types for v in op.ins):
                    return False
                if op.name not in COLLECTIVES and mismatch(op, [types[v] for v in op.ins], box):
                    return False
                types[op.out] = op.type
            if types[out] != self._sites.types[cls][out]:
                return False
        return True

    # --- collectives -----------------------------------------------------------------------------------

    def _collective(self, site: Site) -> Iterator[Edit]:
        op = site.first
        if op.name not in COLLECTIVES:
            return
        here = self._plan.groups[op.text("group")]
        words = f"{op.name} over {over(here)}"
        if op.name == "all_reduce":
            yield from self._edit("drop", f"remove the {words}", site, lambda c, o, n: [kept(o, o.ins[0])])
        for name, group in self._groups.items():
            if group.axes != here.axes and (op.name == "all_reduce" or group.size == here.size):

                def regrouped(cls: str, o: Op, n: int, name: str = name) -> Sequence[Op]:
                    return [changed_to(o, group=name)]

                yield from self._edit(
                    "group", f"{op.name} over {over(group)} instead of {over(here)}", site, regrouped
                )
        yield from self._summed_apart(site)
        if "kind" in op.attrs:
            other = _KINDS[op.text("kind")]
            yield from self._edit(
                "change", f"reduce with {other}", site, lambda c, o, n: [changed_to(o, kind=other)]
            )

    def _summed_apart(self, site: Site) -> Iterator[Edit]:
        """A term that all ranks hold is added after the sum over ranks, not before."""
        for i in (0, 1):

            def apart(cls: str, o: Op, n: int, i: int = i) -> Sequence[Op] | None:
                term = self._sites.made[cls].get(o.ins[0])
                if term is None or term.name not in ("add", "subtract"):
                    return None
                here = self._plan.groups[o.text("group")]
                whole, ops = (
                    term.ins[1 - i],
                    [dataclasses.replace(o, out=f"{FRESH}{n}.s", ins=(term.ins[i],))],
                )
                if o.name == "reduce_scatter":
                    if len(here.axes) != 1:
                        return None
                    start = tuple(
                        Affine.of(0, {here.axes[0]: size}) if d == o.integer("dim") else Affine(0)
                        for d, size in enumerate(o.type.shape)
                    )
                    attrs: dict[str, Attr] = {"start": start, "stride": (1,) * len(start)}
                    ops.append(Op(f"{FRESH}{n}.p", "slice", (whole,), o.type, attrs, o.loc))
                    whole = f"{FRESH}{n}.p"
                ins = (f"{FRESH}{n}.s", whole) if i == 0 else (whole, f"{FRESH}{n}.s")
                return [*ops, Op(o.out, term.name, ins, o.type, {}, o.loc)]

            if site.first.name in ("all_reduce", "reduce_scatter") and site.first.text("kind") == "add":
                yield from self._edit(
                    "swap", f"sum operand {i} only over the ranks, then add the other", site, apart
                )

    def _summed_together(self, site: Site) -> Iterator[Edit]:
        """A term that is a part on each rank is added before the sum over ranks, not after."""
        for i in (0, 1):

            def together(cls: str, o: Op, n: int, i: int = i) -> Sequence[Op] | None:
                sum_ = self._sites.made[cls].get(o.ins[i])
                if sum_ is None or sum_.name != "all_reduce" or sum_.text("kind") != "add":
                    return None
                inner = f"{FRESH}{n}.t"
                ins = tuple(sum_.ins[0] if k == i else v for k, v in enumerate(o.ins))
                return [
                    dataclasses.replace(o, out=inner, ins=ins),
                    dataclasses.replace(
                        sum_, out=o.out, ins=(inner,), attrs={**sum_.attrs, "seq": self._seq + n}, loc=o.loc
                    ),
                ]

            if site.first.name in ("add", "subtract"):
                yield from self._edit("swap", "add before the sum over ranks, not after it", site, together)

    def _inserted(self, site: Site) -> Iterator[Edit]:
        """A reduction after the ops, over axes over which their results are partial sums, if none follows."""
        for axes, coef in self._standings.partial(site.ops):
            if all(self._reduced(cls, op, axes) for cls, op in site.ops):
                continue
            name = next((n for n, g in self._groups.items() if g.axes == axes), None)
            for factor in dict.fromkeys((Fraction(1), 1 / coef)) if name is not None else ():

                def reduced(
                    cls: str, op: Op, n: int, name: str = name or "", factor: Fraction = factor
                ) -> Sequence[Op]:
                    def more(hidden: str) -> Sequence[Op]:
                        attrs: dict[str, Attr] = {"group": name, "kind": "add", "seq": self._seq + n}
                        sum_ = Op(f"{FRESH}{n}.s", "all_reduce", (hidden,), op.type, attrs, op.loc)
                        return [sum_] if factor == 1 else [sum_, *scaling(op, n, sum_.out, factor)]

                    return followed(op, n, more)

                words = f"add an all_reduce over {'/'.join(axes)}" + (
                    f", and {times(factor)}" if factor != 1 else ""
                )
                yield from self._edit("insert" if factor == 1 else "average", words, site, reduced, True)

    def _reduced(self, cls: str, op: Op, axes: tuple[str, ...]) -> bool:
        """Are all readers sums over some of these axes, or linear ops and collectives before such?"""
        return bool(readers := self._sites.users[cls][op.out]) and all(
            (r.attrs.get("kind") == "add" and r.name in COLLECTIVES and self._over(r) & {*axes})
            or ((r.name in LINEAR or r.name in COLLECTIVES) and self._reduced(cls, r, axes))
            for r in readers
        )

    def _over(self, op: Op) -> set[str]:
        return {*self._plan.groups[op.text("group")].axes}

    def _communicated(self, site: Site) -> Iterator[Edit]:
        """A collective in place of what looks like one on a single rank: a factor, copies, the own piece."""
        for name, group in self._groups.items():
            for factor in (
                (Fraction(1), Fraction(1, group.size)) if site.first.name == "slice" else (Fraction(1),)
            ):

                def exchanged(
                    cls: str,
                    o: Op,
                    n: int,
                    name: str = name,
                    size: int = group.size,
                    factor: Fraction = factor,
                ) -> Sequence[Op] | None:
                    made = self._exchanged(cls, o, name, size, n)
                    if made is None or factor == 1:
                        return None if made is None else [made]
                    hidden = dataclasses.replace(made, out=f"{FRESH}{n}.e")
                    return [hidden, *scaling(o, n, hidden.out, factor)]

                if (made := self._exchanged(site.ops[0][0], site.first, name, group.size, 0)) is not None:
                    more = f", and {times(factor)}" if factor != 1 else ""
                    words = f"{made.name} over {over(group)} instead of the {site.first.name}{more}"
                    yield from self._edit("instead", words, site, exchanged)

    def _exchanged(self, cls: str, op: Op, group: str, size: int, number: int) -> Op | None:
        at: dict[str, Attr] = {"group": group, "seq": self._seq + number}
        if op.name in ("multiply", "divide"):
            values = [v for v in op.ins if self._sites.literal(cls, v) is None]
            if len(values) == 1 and self._partial(cls, values[0], group):
                return Op(op.out, "all_reduce", (values[0],), op.type, {**at, "kind": "add"}, op.loc)
        if op.name == "concatenate" and len(op.ins) == size and len({*op.ins}) == 1:
            return Op(op.out, "all_gather", (op.ins[0],), op.type, {**at, "dim": op.attrs["dim"]}, op.loc)
        if op.name == "slice" and self._partial(cls, op.ins[0], group):
            whole = self._sites.types[cls][op.ins[0]].shape
            cut = [d for d, n in enumerate(op.type.shape) if n != whole[d]]
            if len(cut) == 1 and op.type.shape[cut[0]] * size == whole[cut[0]]:
                attrs = {**at, "kind": "add", "dim": cut[0]}
                return Op(op.out, "reduce_scatter", (op.ins[0],), op.type, attrs, op.loc)
        return None

    def _partial(self, cls: str, value: str, group: str) -> bool:
        """Is it a sum over ranks of the group?"""
        rank = self._plan.mesh.rank({a: lo for a, (lo, _) in self._plan.by_class[cls].box.items()})
        axes = {*self._groups[group].axes}
        return any(axes <= {*s.axes} for s in self._standings.of(rank, value))


def groups_of(plan: Plan) -> dict[str, Group]:
    """The plan's groups, and one for every other set of mesh axes."""
    found = dict(plan.groups)
    known = {g.axes for g in found.values()}
    axes = [a for a, n in plan.mesh.axes.items() if n > 1]
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            if chosen not in known and tuple(reversed(chosen)) not in known:
                found["_".join(("over", *chosen))] = Group(chosen, plan.mesh.fibres(chosen))
    return found


def over(group: Group) -> str:
    """Its axes in words."""
    return "/".join(group.axes)


def changed_to(op: Op, **attrs: Attr) -> Op:
    """The op with other attributes."""
    return dataclasses.replace(op, attrs={**op.attrs, **attrs})


def kept(op: Op, value: str) -> Op:
    """The value itself in the op's place."""
    return Op(op.out, "reshape", (value,), op.type, {}, op.loc)


def scaling(op: Op, number: int, value: str, factor: Fraction) -> list[Op]:
    """The value times a factor, in the op's place."""
    literal = Op(f"{FRESH}{number}.c", "constant", (), op.type, {"value": format_rational(factor)}, op.loc)
    return [literal, Op(op.out, "multiply", (value, literal.out), op.type, {}, op.loc)]


def times(factor: Fraction) -> str:
    """A factor as an order."""
    return f"divide by {1 / factor}" if factor.numerator == 1 else f"multiply by {factor}"
