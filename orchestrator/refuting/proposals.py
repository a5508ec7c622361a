"""Edits that people would make: a collective, its group, a factor, an offset, an order, an operand.

Whether an edit repairs anything is for :mod:`.trials` to say. Edits are proposed at every site that all wrong
outputs depend on, each where the type rules allow it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.ops import COLLECTIVES, OPS
from certificates.plan.program import Attr, Op
from certificates.plan.types import TensorType, format_rational

from .edits import FRESH, Edit, followed
from .reductions import Reductions, changed_to, kept, scaling, times
from .sites import Site

_OTHER = {
    "add": "subtract", "subtract": "add", "multiply": "divide", "divide": "multiply",
    "maximum": "minimum", "minimum": "maximum",
}  # fmt: skip
_ORDERED = frozenset(["subtract", "divide", "power"])
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
#: Operands of a concatenation of which all orders are tried, and positions of a rewired operand.
_PARTS, _NEAR = 3, 24


class Proposals(Reductions):
    """Edits of one plan, in an order that does not depend on time."""

    def all(self) -> Iterator[Edit]:
        """Edits of collectives, factors, offsets, orders and literals; then other operands, further terms."""
        every = list(self._sites.all())
        makers = (self._collective, self._inserted, self._scaled, self._dropped, self._changed)
        yield from self._renamed()
        for make in (*makers, self._operand, self._term):
            for site in every:
                if not site.together or make in (self._inserted, self._scaled):
                    yield from make(site)

    # --- factors ---------------------------------------------------------------------------------------

    def _scaled(self, site: Site) -> Iterator[Edit]:
        """A factor after the ops, where their results are a multiple of a tensor of the specification."""
        for coef in self._standings.factors(site.ops):

            def scaled(cls: str, op: Op, n: int, coef: Fraction = coef) -> Sequence[Op]:
                return followed(op, n, lambda hidden: scaling(op, n, hidden, 1 / coef))

            yield from self._edit("scale", times(1 / coef), site, scaled, True)

    # --- elementwise -----------------------------------------------------------------------------------

    def _dropped(self, site: Site) -> Iterator[Edit]:
        op = site.first
        row = OPS[op.name]
        if not (row.elementwise or op.name in ("select", "convert")):
            return
        for i in range(len(op.ins)):

            def dropped(cls: str, o: Op, n: int, i: int = i) -> Sequence[Op]:
                return [kept(o, o.ins[i])]

            yield from self._edit("drop", f"remove the {op.name}", site, dropped)

    def _changed(self, site: Site) -> Iterator[Edit]:
        op = site.first
        if op.name in _ORDERED:
            yield from self._edit(
                "swap",
                f"swap the operands of {op.name}",
                site,
                lambda c, o, n: [dataclasses.replace(o, ins=o.ins[::-1])],
            )
        if op.name == "select":
            yield from self._edit(
                "swap",
                "swap the branches",
                site,
                lambda c, o, n: [dataclasses.replace(o, ins=(o.ins[0], o.ins[2], o.ins[1]))],
            )
        if op.name in _OTHER:
            yield from self._edit(
                "change",
                f"{_OTHER[op.name]} instead of {op.name}",
                site,
                lambda c, o, n: [dataclasses.replace(o, name=_OTHER[o.name])],
            )
        if op.name == "compare":
            for direction in _DIRECTIONS:
                if direction != op.text("direction"):

                    def turned(cls: str, o: Op, n: int, d: str = direction) -> Sequence[Op]:
                        return [changed_to(o, direction=d)]

                    words = f"compare with {direction} instead of {op.text('direction')}"
                    yield from self._edit("change", words, site, turned)
        if op.name == "concatenate" and len(op.ins) >= 2:
            yield from self._orders(site)
        if op.name == "slice":
            yield from self._windows(site)
        if op.name == "pad":
            yield from self._pads(site)
        if op.name == "iota":
            yield from self._offsets(site)
        yield from self._summed_together(site)
        yield from self._communicated(site)
        yield from self._literals(site)

    def _orders(self, site: Site) -> Iterator[Edit]:
        count = len(site.first.ins)
        every = itertools.permutations(range(count)) if count <= _PARTS else (
            *(tuple(range(k, count)) + tuple(range(k)) for k in range(1, count)), tuple(range(count))[::-1],
        )  # fmt: skip
        for order in every:

            def ordered(
                cls: str, o: Op, n: int, order: tuple[int, ...] = tuple(order)
            ) -> Sequence[Op] | None:
                if len(o.ins) != len(order):
                    return None
                return [dataclasses.replace(o, ins=tuple(o.ins[i] for i in order))]

            if tuple(order) != tuple(range(count)):
                yield from self._edit(
                    "swap", f"concatenate in the order {', '.join(map(str, order))}", site, ordered
                )

    def _windows(self, site: Site) -> Iterator[Edit]:
        """Other starts, one dimension at a time: beside, at the start or the end, at the rank's own piece."""
        cls, op = site.ops[0]
        for dim in range(len(op.type.shape)):
            start = op.affines("start")[dim]
            for k, (new, step) in enumerate(self._moves(cls, op, dim)):

                def moved(c: str, o: Op, n: int, d: int = dim, k: int = k) -> Sequence[Op] | None:
                    moves = self._moves(c, o, d)
                    if k >= len(moves):
                        return None
                    starts, strides = list(o.affines("start")), list(o.ints("stride"))
                    starts[d], strides[d] = moves[k]
                    return [changed_to(o, start=tuple(starts), stride=tuple(strides))]

                words = f"start at {new}" + (f" with stride {step}" if step != op.ints("stride")[dim] else "")
                yield from self._edit("change", f"{words} instead of {start}", site, moved)

    def _moves(self, cls: str, op: Op, dim: int) -> list[tuple[Affine, int]]:
        """Starts and strides of a slice in a dimension: the same number is the same rule for every op."""
        if dim >= len(op.type.shape):
            return []
        size, whole = op.type.shape[dim], self._sites.types[cls][op.ins[0]].shape[dim]
        start, stride = op.affines("start")[dim], op.ints("stride")[dim]
        if size == whole:
            return []
        found = [(new, stride) for new in self._beside(start, size, whole)]
        if stride > 1:  # taken for interleaved; or one of the blocks
            found += [(start.scale(size), 1), *((Affine(k * size), 1) for k in range(whole // size))]
        return found

    def _beside(self, at: Affine, size: int, whole: int) -> Iterator[Affine]:
        yield from (at + 1, at - 1, Affine(0), Affine(whole - size), Affine(at.const), at - at.const)
        yield from (at + size, at - size)
        for axis, count in self._plan.mesh.axes.items():
            if count > 1:
                yield Affine.of(0, {axis: size})
                yield Affine.of(0, {axis: whole // count})
                yield at + Affine.of(0, {axis: size})
        for k in range(min(whole // size, 8)):
            yield Affine(k * size)

    def _pads(self, site: Site) -> Iterator[Edit]:
        def turned(cls: str, o: Op, n: int) -> Sequence[Op]:
            return [changed_to(o, low=o.ints("high"), high=o.ints("low"))]

        yield from self._edit("change", "pad at the other end", site, turned)

    def _offsets(self, site: Site) -> Iterator[Edit]:
        """Positions that start at the rank's piece."""
        for axis, count in self._plan.mesh.axes.items():
            size = site.first.type.shape[site.first.integer("dim")]
            piece = Affine.of(0, {axis: size})
            if count > 1:

                def moved(cls: str, op: Op, n: int, at: Affine = piece) -> Sequence[Op]:
                    def more(hidden: str) -> Sequence[Op]:
                        literal = Op(f"{FRESH}{n}.c", "constant", (), op.type, {"value": at}, op.loc)
                        return [literal, Op(op.out, "add", (hidden, literal.out), op.type, {}, op.loc)]

                    return followed(op, n, more)

                yield from self._edit("change", f"count from {size} * rank on {axis}", site, moved)

    def _literals(self, site: Site) -> Iterator[Edit]:
        """Another literal as an operand, for these ops alone."""
        cls, op = site.ops[0]
        if op.name in ("broadcast_in_dim", "reshape", "convert"):
            return
        for i, v in enumerate(op.ins):
            value = self._sites.literal(cls, v)
            if value is None:
                continue
            type_ = self._sites.types[cls][v]
            for other in self._others(value, type_):

                def changed(c: str, o: Op, n: int, i: int = i, other: Attr = other) -> Sequence[Op] | None:
                    if len(o.ins) != len(op.ins) or self._sites.literal(c, o.ins[i]) is None:
                        return None
                    type_ = self._sites.types[c][o.ins[i]]
                    literal = Op(f"{FRESH}{n}.c.{o.out}", "constant", (), type_, {"value": other}, o.loc)
                    ins = (*o.ins[:i], literal.out, *o.ins[i + 1 :])
                    return [literal, dataclasses.replace(o, ins=ins)]

                yield from self._edit(
                    "literal", f"{other} instead of {value} in the {op.name}", site, changed
                )

    def _others(self, value: Attr, type_: TensorType) -> Iterator[Attr]:
        sizes = [n for n in self._plan.mesh.axes.values() if n > 1]
        if type_.sort == "Bool":
            yield "false" if value == "true" else "true"
        elif isinstance(value, Affine):
            found = [value + 1, value - 1, Affine(value.const), value - value.const]
            found += [value + k for _, k in value.terms] + [value - k for _, k in value.terms]
            yield from (f for f in dict.fromkeys(found) if f != value)
        elif isinstance(value, str) and value not in ("inf", "-inf"):
            number = Fraction(value)
            found_ = [number + 1, number - 1, Fraction(0), Fraction(1), -number]
            found_ += [f for n in sizes for f in (number * n, number / n)]
            found_ += [number * math.prod(sizes), number / math.prod(sizes)]
            whole = type_.sort == "Int" or (number.denominator == 1 and abs(number) > 1)  # a count
            for f in dict.fromkeys(found_):
                if f != number and (f.denominator == 1 or not whole):
                    yield format_rational(f)

    # --- operands --------------------------------------------------------------------------------------

    def _renamed(self) -> Iterator[Edit]:
        """Another input of the same type, wherever one is read."""
        for c in self._plan.classes:
            for name, type_ in c.program.inputs.items():
                readers = tuple((c.name, op) for op in self._sites.users[c.name][name])
                bears = 0
                for cls, op in readers:
                    bears |= self._sites.reach[cls][op.out]
                if len(readers) < 2 or bears & self._sites.wrong != self._sites.wrong:
                    continue
                for other, its in c.program.inputs.items():
                    if other != name and its == type_:

                        def read(
                            cls: str, o: Op, n: int, name: str = name, other: str = other
                        ) -> Sequence[Op]:
                            ins = tuple(other if v == name else v for v in o.ins)
                            return [dataclasses.replace(o, ins=ins)]

                        yield from self._edit(
                            "operand", f"read {other} instead of {name}", Site(readers), read
                        )

    def _operand(self, site: Site) -> Iterator[Edit]:
        op = site.first
        if op.name in COLLECTIVES and op.name != "all_reduce":
            return
        for i in range(len(op.ins)):
            for words, role in self._roles(site, i):

                def rewired(
                    c: str, o: Op, n: int, i: int = i, role: dict[tuple[str, str], str] = role
                ) -> Sequence[Op] | None:
                    v = role.get((c, o.out))
                    return (
                        None if v is None else [dataclasses.replace(o, ins=(*o.ins[:i], v, *o.ins[i + 1 :]))]
                    )

                yield from self._edit(
                    "operand", f"read {words} instead of {op.ins[i]} in the {op.name}", site, rewired
                )

    def _term(self, site: Site) -> Iterator[Edit]:
        if site.first.type.sort != "Real":
            return
        for words, role in self._roles(site, None):

            def added(c: str, o: Op, n: int, role: dict[tuple[str, str], str] = role) -> Sequence[Op] | None:
                v = role.get((c, o.out))
                return (
                    None
                    if v is None
                    else followed(o, n, lambda hidden: [Op(o.out, "add", (hidden, v), o.type, {}, o.loc)])
                )

            yield from self._edit("add", f"add {words}", site, added, True)

    def _roles(self, site: Site, index: int | None) -> Iterator[tuple[str, dict[tuple[str, str], str]]]:
        """Values made before, of the type of an operand (or of the result): for several ops, of one line."""
        cls, op = site.ops[0]
        program = self._plan.by_class[cls].program
        old = None if index is None else op.ins[index]
        wanted = op.type if old is None else self._sites.types[cls][old]
        at = next(k for k, o in enumerate(program.ops) if o.out == op.out)
        near = [
            v for v in dict.fromkeys(v for o in reversed(program.ops[:at]) for v in (o.out, *o.ins))
            if v != old and self._sites.types[cls][v] == wanted
            and self._sites.literal(cls, v) is None and v not in op.ins
        ]  # fmt: skip
        if len([c for c, _ in site.ops]) == 1:
            for v in near[:_NEAR]:
                yield v, {(cls, op.out): v}
            return
        for v in near[:_NEAR]:
            role = self._alike(site, at, v)
            if role is not None:
                yield v, role

    def _alike(self, site: Site, at: int, value: str) -> dict[tuple[str, str], str] | None:
        """Of every op of a site the value that stands to it as one does to the first: same distance."""
        cls, op = site.ops[0]
        program = self._plan.by_class[cls].program
        if value in program.inputs:
            back, place = None, None
        else:
            place = next(k for k, o in enumerate(program.ops) if o.out == value)
            back = at - place
        found = {(cls, op.out): value}
        for c, o in site.ops[1:]:
            ops = self._plan.by_class[c].program.ops
            here = next(k for k, x in enumerate(ops) if x.out == o.out)
            if back is None:
                found[c, o.out] = value
            elif here - back >= 0:
                found[c, o.out] = ops[here - back].out
        return found if len(found) == len(site.ops) else None
