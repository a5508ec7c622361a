"""Row orders (obligation 22): programs on packed rows, read as the programs on slots that they stand for.

A packed tensor has a row for every slot that is there, and the order of its rows is known to no one but the
sort that made it. So ops on rows name their order, a value of the program; all else acts on rows one by one.
Then a result is the same in every order, and a packed op is read as the plain ops of docs/format.md. Their
tensors have a row for every slot, there or not, and where weights by key were applied one for every slot and
key: what the row would be if it had that key. Masks drop the others. From here on nobody knows of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..errors import Rejected, need
from ..language.affine import Affine
from ..language.ops import ALGEBRA, Op, Type
from ..language.plan import Group

PACKED = {
    "sort_rows": (1, "count"),
    "ship_rows": (1, "group seq"),
    "regroup_rows": (1, ""),
    "pack": (2, ""),
    "ship": (2, "seq"),
    "regroup": (2, ""),
    "ungroup": (2, ""),
    "ship_back": (2, "seq"),
    "unpack": (2, ""),
    "ragged_dot": (3, "contract"),
    "ragged_outer": (3, ""),
}
"""Operands and attributes; the last operand is an order, but for `sort_rows`."""
_SHAPED = ("broadcast_in_dim", "transpose", "reduce", "dot_general")


@dataclass(frozen=True, slots=True)
class Order:
    """An order of rows: its value in the program, the op that makes it, the order that it goes on from, the
    number of all keys, and where rows are sent, to whom and under which number."""

    value: str
    step: str
    base: Order | None
    count: int
    group: str = ""
    axes: tuple[str, ...] = ()
    size: int = 1
    seq: int = -1

    @property
    def per(self) -> int:
        """Keys of one rank."""
        return self.count // self.size


def names(entries: Iterable[Any]) -> Iterator[int]:
    """Numbers of the results of a program's entries, those that are numbers."""
    for entry in entries:
        given = entry[0] if isinstance(entry, list) and entry else ""
        for text in given if isinstance(given, list) else (given,):
            if isinstance(text, str) and text[1:].isdecimal() and len(text) < 12:
                yield int(text[1:])


class Rows:
    """What the values of one program are: orders, tensors packed in one, tensors alike in all their rows."""

    def __init__(self, where: str, mesh: Mapping[str, int], entries: Iterable[Any]) -> None:
        self.where, self.mesh = where, mesh
        self.next = max(names(entries), default=-1) + 1
        self.orders, self.packed, self.alike = dict[str, Order](), dict[str, Order](), set[str]()
        self.keys, self.meets = dict[str, tuple[str, int]](), dict[int, tuple[str, int]]()
        self.after = dict[str, str]()
        self.declared, self.zero, self.masks = dict[str, Type](), set[str](), dict[tuple[str, str], Op]()

    def plain(self, value: str, what: str) -> None:
        """A value that has nothing to do with rows."""
        if value in self.orders or value in self.packed:
            raise Rejected(22, f"{what} {value}, which rests on an order of rows", self.where)

    def follow(self, op: Op) -> None:
        """An op that is no op on rows: on a packed tensor it acts on each row by itself, or is refused."""
        dims = op.attrs.get("dims", ())
        if (
            op.name == "constant"
            or (op.name == "iota" and op.attrs["dim"])
            or (op.name == "broadcast_in_dim" and 0 not in dims)
        ):
            self.alike.add(op.result)
        orders = {self.packed[o].value for o in op.operands if o in self.packed}
        if any(o in self.orders for o in op.operands):
            raise Rejected(22, f"{op.name} {op.result} takes an order", self.where)
        if not orders:
            return
        if len(orders) > 1:
            raise Rejected(22, f"{op.name} {op.result} joins rows of two orders", self.where)
        if not self._by_row(op):
            raise Rejected(22, f"{op.name} {op.result} does not act on each row by itself", self.where)
        self.packed[op.result] = self.orders[orders.pop()]

    def read(self, op: Op, types: Mapping[str, Type], groups: Mapping[str, Group]) -> Iterator[Op]:
        """The plain ops that an op stands for; the last one has its result. `types` are those of plain ops,
        and `op.ins` those that are written."""
        if op.name in PACKED:
            yield from self._lowered(op, types, groups)
            return
        self.follow(op)
        if not any(o in self.declared for o in op.operands):
            yield op
            return
        a = dict(op.attrs)
        match op.name:
            case "broadcast_in_dim":
                a["dims"] = (0, *(d + 1 if d else 1 for d in a["dims"]))
            case "reduce":
                a["dims"] = tuple(d + 1 for d in a["dims"])
            case "slice":
                a["start"] = (a["start"][0], Affine(0), *a["start"][1:])
                a["stride"] = (1, 1, *a["stride"][1:])
            case "concatenate":
                a["dim"] += 1
            case _ if op.variant not in ALGEBRA or op.name in _SHAPED:
                raise Rejected(
                    22, f"{op.name} {op.result} takes rows with a product for each key", self.where
                )
        per, ins = self.packed[op.result].per, list[Op]()
        for operand, kind in zip(op.operands, op.ins, strict=True):
            if operand not in self.declared:
                ins.append(self._wide(op, operand, kind, per))
                yield ins[-1]
            else:
                ins.append(self._there(operand, types))
        self.declared[op.result] = op.type
        names, kinds = tuple(i.result for i in ins), tuple(i.type for i in ins)
        yield self._made(op, op.name, names, kinds, keyed(op.type, per), a, op.result)

    @staticmethod
    def _there(value: str, types: Mapping[str, Type]) -> Op:
        """A value that stands already, by name and type."""
        return Op(value, "", (), (), types[value], {}, None)

    def _wide(self, op: Op, value: str, kind: Type, per: int) -> Op:
        """Rows that are there once per slot, repeated for each key."""
        wide = keyed(kind, per)
        return self._made(
            op, "broadcast_in_dim", (value,), (kind,), wide, {"dims": (0, *range(2, len(wide.shape)))}
        )

    def _by_row(self, op: Op) -> bool:
        a, rows = op.attrs, op.ins[0].shape[:1]
        match op.name:
            case "broadcast_in_dim":
                return bool(a["dims"][0] == 0 and op.type.shape[:1] == rows)
            case "reduce":
                return 0 not in a["dims"]
            case "reshape":
                return op.type.shape[:1] == rows
            case "slice":
                return bool(a["start"][0] == Affine(0) and a["stride"][0] == 1 and op.type.shape[:1] == rows)
            case "concatenate":
                return a["dim"] > 0 and all(o in self.packed for o in op.operands)
            case "dot_general":
                x, y = (o in self.packed for o in op.operands)
                return x and not y and not a["lhs_batch"] and 0 not in a["lhs_contract"]
        others = [o for o in op.operands if o not in self.packed]
        return op.variant in ALGEBRA and op.name not in _SHAPED and self.alike.issuperset(others)

    def _order(self, op: Op, *steps: str) -> Order:
        """The order that an op on rows takes: its last operand."""
        order = self.orders.get(op.operands[-1])
        if order is None or order.step not in steps:
            raise Rejected(
                22, f"{op.name} {op.result} needs an order made by {' or '.join(steps)}", self.where
            )
        return order

    def _in(self, op: Op, place: int, order: Order | None) -> None:
        """An operand is packed in this order."""
        if order is None or self.packed.get(op.operands[place]) != order:
            found = self.packed.get(op.operands[place])
            said = f"in the order {found.value}" if found else "not packed"
            raise Rejected(
                22,
                f"{op.name} {op.result}: {op.operands[place]} is {said}, not in {order and order.value}",
                self.where,
            )

    def _lowered(self, op: Op, types: Mapping[str, Type], groups: Mapping[str, Group]) -> Iterator[Op]:
        x, a = op.ins[0], op.attrs
        if op.name in ("sort_rows", "ship_rows", "regroup_rows"):
            yield from self._new_order(op, groups)
            return
        order = self._order(
            op,
            *{
                "pack": ("sort_rows",),
                "unpack": ("sort_rows",),
                "ship": ("ship_rows",),
                "ship_back": ("ship_rows",),
                "regroup": ("regroup_rows",),
                "ungroup": ("regroup_rows",),
            }.get(op.name, ("sort_rows", "regroup_rows")),
        )
        shape, after = x.shape, order.base
        self.after[op.result] = order.value
        need(x.sort == "Real" and len(shape) > 0, f"op {op.result}: rows are of floats")
        match op.name:
            case "pack":
                self.plain(op.operands[0], f"{op.name} {op.result} takes")
                need(shape[0] == op.ins[1].shape[0], f"op {op.result}: a row for each slot")
                after = order
            case "ship" | "regroup":
                self._in(op, 0, order.base)
                after = order
            case _:
                self._in(op, 0, order)
        if op.name == "ship" or op.name == "ship_back":
            self.meets[a["seq"]] = (op.name, order.seq)
            slots = shape[0] * order.size if op.name == "ship" else shape[0] // order.size
            shape = (slots, *shape[1:])
        if op.name.startswith("ragged"):
            yield from self._ragged(op, order, types)
            return
        need(op.type == Type(x.dtype, shape), f"op {op.result}: result type does not fit")
        by_key = op.operands[0] in self.declared
        if by_key and op.name not in ("ungroup", "unpack"):
            raise Rejected(22, f"{op.name} {op.result} takes rows with a product for each key", self.where)
        if op.name == "ship":
            attrs = {"group": order.group, "dim": 0, "seq": a["seq"]}
            yield self._made(op, "all_gather", op.operands[:1], (x,), op.type, attrs, op.result)
        elif op.name == "ship_back":
            yield from self._returned(op, order)
        elif by_key:
            yield from self._mask(op, order, x.dtype)
            pair = (self.masks[order.value, x.dtype], self._there(op.operands[0], types))
            yield self._dot(op, pair, op.type, ((0,), (0,)), ((1,), (1,)), op.result)
            self.zero.add(op.result)
        else:
            yield self._same(op)
        if after is not None and op.name != "unpack":
            self.packed[op.result] = after

    def _new_order(self, op: Op, groups: Mapping[str, Group]) -> Iterator[Op]:
        x, a = op.ins[0], op.attrs
        fits = x.sort == "Int" and len(x.shape) == 1
        if op.name == "sort_rows":
            self.plain(op.operands[0], f"{op.name} {op.result} sorts by")
            need(fits and op.type == x and a["count"] > 0, f"op {op.result}: bad keys")
            self.keys[op.result] = op.operands[0], a["count"]
            self.orders[op.result] = Order(op.result, op.name, None, a["count"])
        elif op.name == "regroup_rows":
            base = self._order(op, "ship_rows")
            need(op.type == x, f"op {op.result}: result type does not fit")
            self.orders[op.result] = replace(base, value=op.result, step=op.name, base=base)
        else:
            base, group = self._order(op, "sort_rows"), groups[a["group"]]
            if group.runs or not group.factorised or base.count % group.size:
                raise Rejected(
                    22, f"{op.name} {op.result}: {base.count} keys over the group {group.name}", self.where
                )
            wanted = Type(x.dtype, (x.shape[0] * group.size,))
            need(op.type == wanted, f"op {op.result}: result type does not fit")
            self.orders[op.result] = Order(
                op.result, op.name, base, base.count, group.name, group.axes, group.size, a["seq"]
            )
            self.meets[a["seq"]] = (op.name, base.count)
            attrs = {"group": group.name, "dim": 0, "seq": a["seq"]}
            yield self._made(op, "all_gather", op.operands, op.ins, op.type, attrs, op.result)
            return
        yield self._same(op)

    def _made(
        self,
        op: Op,
        name: str,
        operands: tuple[str, ...],
        ins: tuple[Type, ...],
        kind: Type,
        attrs: Mapping[str, Any],
        result: str = "",
    ) -> Op:
        if not result:
            result, self.next = f"%{self.next}", self.next + 1
        return Op(result, name, operands, ins, kind, attrs, op.source)

    def _same(self, op: Op) -> Op:
        """The operand as it is: slots stay where they are, whatever rows do."""
        perm = {"perm": tuple(range(len(op.type.shape)))}
        return self._made(op, "transpose", op.operands[:1], op.ins[:1], op.type, perm, op.result)

    def _first(self, order: Order, by: int) -> Affine:
        """The first key of this rank, and `by` more."""
        total, step = Affine(by), order.per
        for axis in reversed(order.axes):
            total = Affine.total([(1, total), (step, Affine.symbol(axis))])
            step *= self.mesh[axis]
        return total

    def _number(self, op: Op, order: Order, by: int, kind: Type) -> Op:
        """A constant: the rank's first key, and `by` more."""
        form = self._first(order, by)
        return self._made(
            op, "constant", (), (), kind, {"value": form if form.terms else Fraction(form.const)}
        )

    def _returned(self, op: Op, order: Order) -> Iterator[Op]:
        """The sum over the ranks, of which one owns the key of a row; what others have there is made 0."""
        attrs = {"group": order.group, "kind": "add", "dim": 0, "seq": op.attrs["seq"]}
        if op.operands[0] in self.zero:
            yield self._made(op, "reduce_scatter", op.operands[:1], op.ins[:1], op.type, attrs, op.result)
            return
        (key, kind), (x, rows) = (op.operands[1], op.ins[1]), (op.operands[0], op.ins[0])
        bits, wide = Type("i1", kind.shape), Type("i1", rows.shape)
        inside = []
        for by, direction in ((0, "GE"), (order.per, "LT")):
            end = self._number(op, order, by, kind)
            yield end
            side = (key, end.result), (kind, kind)
            inside.append(self._made(op, "compare", *side, bits, {"direction": direction}))
            yield inside[-1]
        both = self._made(op, "and", (inside[0].result, inside[1].result), (bits, bits), bits, {})
        mask = self._made(op, "broadcast_in_dim", (both.result,), (bits,), wide, {"dims": (0,)})
        zero = self._made(op, "constant", (), (), rows, {"value": Fraction(0)})
        own = self._made(op, "select", (mask.result, x, zero.result), (wide, rows, rows), rows, {})
        yield from (both, mask, zero, own)
        yield self._made(op, "reduce_scatter", (own.result,), (rows,), op.type, attrs, op.result)

    def _mask(self, op: Op, order: Order, dtype: str) -> Iterator[Op]:
        """1 where a slot has a key, of those that are the rank's own; made at its first use."""
        if (order.value, dtype) in self.masks:
            return
        kind = op.ins[-1]
        grid = Type(kind.dtype, (kind.shape[0], order.per))
        line = Type(kind.dtype, (order.per,))
        number = self._made(op, "iota", (), (), line, {"dim": 0})
        yield number
        if order.group:
            first = self._number(op, order, 0, line)
            number = self._made(op, "add", (number.result, first.result), (line, line), line, {})
            yield from (first, number)
        wide = self._made(op, "broadcast_in_dim", op.operands[-1:], (kind,), grid, {"dims": (0,)})
        numbers = self._made(op, "broadcast_in_dim", (number.result,), (line,), grid, {"dims": (1,)})
        yield from (wide, numbers)
        pair, bits = (wide.result, numbers.result), Type("i1", grid.shape)
        equal = self._made(op, "compare", pair, (grid, grid), bits, {"direction": "EQ"})
        hot = self._made(op, "convert", (equal.result,), (bits,), Type(dtype, grid.shape), {})
        self.masks[order.value, dtype] = hot
        yield from (equal, hot)

    def _dot(
        self, op: Op, pair: tuple[Op, Op], kind: Type, batch: Any, contract: Any, result: str = ""
    ) -> Op:
        (lb, rb), (lc, rc) = batch, contract
        attrs = {"lhs_batch": lb, "rhs_batch": rb, "lhs_contract": lc, "rhs_contract": rc}
        names, kinds = (pair[0].result, pair[1].result), (pair[0].type, pair[1].type)
        return self._made(op, "dot_general", names, kinds, kind, attrs, result)

    def _ragged(self, op: Op, order: Order, types: Mapping[str, Type]) -> Iterator[Op]:
        """A product for each key: for each row, or of the rows that have it."""
        where = f"{self.where}: op {op.result}"
        rows, other = op.ins[:2]
        x, y = (self._there(o, types) for o in op.operands[:2])
        n, per, none = rows.shape[0], order.per, ((), ())
        need(len(rows.shape) == 2 and other.dtype == rows.dtype, f"{where}: operands do not fit")
        if op.name == "ragged_dot":
            self.plain(y.result, f"{op.name} {op.result} takes the weights")
            side = op.attrs["contract"]
            fits = len(other.shape) == 3 and side in (1, 2) and other.shape[0] == per
            need(fits and other.shape[side] == rows.shape[1], f"{where}: operands do not fit")
            width = other.shape[3 - side]
            need(op.type == Type(rows.dtype, (n, width)), f"{where}: result type does not fit")
            every = keyed(op.type, per)
            if x.result in self.declared:
                turned = Type(rows.dtype, (per, n, width))
                product = self._dot(op, (x, y), turned, ((1,), (0,)), ((2,), (side,)))
                yield product
                perm = {"perm": (1, 0, 2)}
                yield self._made(op, "transpose", (product.result,), (turned,), every, perm, op.result)
            else:
                yield self._dot(op, (x, y), every, none, ((1,), (side,)), op.result)
            self.packed[op.result], self.declared[op.result] = order, op.type
            return
        self._in(op, 1, order)
        need(len(other.shape) == 2, f"{where}: operands do not fit")
        wanted = Type(rows.dtype, (per, rows.shape[1], other.shape[1]))
        need(op.type == wanted, f"{where}: result type does not fit")
        yield from self._mask(op, order, rows.dtype)
        hot, cube = self.masks[order.value, rows.dtype], keyed(rows, per)
        masks = self._made(op, "broadcast_in_dim", (hot.result,), (hot.type,), cube, {"dims": (0, 1)})
        yield masks
        if x.result not in self.declared:
            x = self._wide(op, x.result, rows, per)
            yield x
        own = self._made(op, "multiply", (masks.result, x.result), (cube, cube), cube, {})
        yield own
        batch = ((1,), (1,)) if y.result in self.declared else none
        yield self._dot(op, (own, y), op.type, batch, ((0,), (0,)), op.result)


def keyed(kind: Type, per: int) -> Type:
    """The type of a row for each slot and key, from that of a row for each slot."""
    return Type(kind.dtype, (*kind.shape[:1], per, *kind.shape[1:]))
