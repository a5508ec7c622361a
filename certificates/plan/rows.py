"""Packed rows: programs whose tensors have a row for each slot that is there, in an order that a sort made.

An order is a value of the program: made by ``sort_rows`` of keys, sent on by ``ship_rows``, grouped again by
``regroup_rows``, and taken by every op that depends on it. All other ops act on each row by itself, so that
results do not depend on the order, and a program is *lowered*: to plain ops on tensors that have a row for
every slot, and once weights by key were applied, for every slot and key: what the row would be with that key.
Everything but files and people knows the lowered program only (``docs/format.md``, *Packed rows*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from certificates.plan.affine import Affine
from certificates.plan.plan import Group, Mesh
from certificates.plan.program import Attr, Op, Packing, Program

from ..errors import FormatError
from .ops import ELEMENTWISE, PACKED
from .type_rules import mismatch
from .types import TensorType

SORT, SHIP, REGROUP = "sort_rows", "ship_rows", "regroup_rows"
#: By op, the steps of which one made the order that it takes.
_TAKES = {
    SHIP: (SORT,),
    REGROUP: (SHIP,),
    **dict.fromkeys(("pack", "unpack"), (SORT,)),
    **dict.fromkeys(("ship", "ship_back"), (SHIP,)),
    **dict.fromkeys(("regroup", "ungroup"), (REGROUP,)),
    **dict.fromkeys(("ragged_dot", "ragged_outer"), (SORT, REGROUP)),
}


@dataclass(frozen=True)
class Order:
    """Made by ``step`` from ``base``, over ``slots``; ``count`` keys, ``per`` of them a rank's own."""

    value: str
    step: str
    slots: int
    count: int
    per: int
    base: str = ""
    group: str = ""
    seq: int = -1


def has_rows(ops: Iterable[Op]) -> bool:
    return any(op.name in PACKED for op in ops)


def lowered(program: Program, groups: Mapping[str, Group], mesh: Mesh | None) -> Program:
    """The program with plain ops, which keeps what was written; without packed rows the program itself."""
    if not has_rows(program.ops):
        return program
    work = _Lowering(program, groups, mesh)
    for op in program.ops:
        work.take(op)
    for value in program.outputs.values():
        work.plain(value, "an output is")
    plain = tuple(work.ops)
    packing = Packing(program.ops, plain, work.keys, work.shipped, work.after)
    return replace(program, ops=plain, packing=packing)


@dataclass
class _Lowering:
    program: Program
    groups: Mapping[str, Group]
    mesh: Mesh | None
    ops: list[Op] = field(default_factory=list)
    keys: dict[str, tuple[str, int]] = field(default_factory=dict)
    shipped: dict[int, tuple[str, int]] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.types: dict[str, TensorType] = dict(self.program.inputs)
        self.orders: dict[str, Order] = {}
        self.row_order: dict[str, str] = {}
        self.same_rows: set[str] = set()
        self.keyed: dict[str, TensorType] = {}
        self.absent_zero: set[str] = set()
        self.masks: dict[tuple[str, str], str] = {}
        self.fresh = 1 + max((int(op.out[1:]) for op in self.program.ops), default=-1)

    # --- values ---

    def plain(self, value: str, what: str) -> None:
        if value in self.orders or value in self.row_order:
            raise FormatError(f"{what} {value}, which rests on an order of rows")

    def order(self, op: Op) -> Order:
        found, steps = self.orders.get(op.ins[-1]), _TAKES[op.name]
        if found is None or found.step not in steps:
            raise FormatError(f"{op.name} {op.out} needs an order made by {' or '.join(steps)}")
        return found

    def rows_in(self, op: Op, place: int, order: str) -> None:
        have = self.row_order.get(op.ins[place])
        if have != order:
            said = f"in the order {have}" if have else "not packed"
            raise FormatError(f"{op.name} {op.out}: {op.ins[place]} is {said}, not in {order}")

    # --- ops ---

    def take(self, op: Op) -> None:
        if op.name not in PACKED:
            self._plain_op(op)
            self.types[op.out] = op.type
            return
        if len(op.ins) != PACKED[op.name][0] or any(v not in self.types for v in op.ins):
            raise FormatError(f"{op.name} {op.out} takes {PACKED[op.name][0]} operands that are there")
        if op.name in (SORT, SHIP, REGROUP):
            self._make_order(op)
        else:
            self._move(op)
        self.types[op.out] = op.type

    def _plain_op(self, op: Op) -> None:
        if any(v in self.orders for v in op.ins):
            raise FormatError(f"{op.name} {op.out} takes an order")
        if (
            op.name == "constant"
            or (op.name == "iota" and op.integer("dim") > 0)
            or (op.name == "broadcast_in_dim" and 0 not in op.ints("dims"))
        ):
            self.same_rows.add(op.out)
        orders = {self.row_order[v] for v in op.ins if v in self.row_order}
        if len(orders) > 1:
            raise FormatError(f"{op.name} {op.out} joins rows of two orders")
        if orders:
            self._check_types(op)
            if not self._row_by_row(op):
                raise FormatError(f"{op.name} {op.out} does not act on each row by itself")
            self.row_order[op.out] = orders.pop()
        if any(v in self.keyed for v in op.ins):
            self._with_keys(op)
        else:
            self.ops.append(op)

    def _check_types(self, op: Op) -> None:
        """As it is written: what is lowered has other shapes."""
        problem = mismatch(op, [self.types[v] for v in op.ins], self.mesh_ranges)
        if problem:
            raise FormatError(f"{op.name} {op.out} on packed rows: {problem}")

    def _with_keys(self, op: Op) -> None:
        """The op on rows that are there once per slot and key: dimension 1 is the key."""
        per = self.orders[self.row_order[op.out]].per
        type_, attrs = _keyed(op.type, per), dict(op.attrs)
        if op.name == "broadcast_in_dim":
            attrs["dims"] = (0, *(d + 1 if d else 1 for d in op.ints("dims")))
        elif op.name == "reduce":
            attrs["dims"] = tuple(d + 1 for d in op.ints("dims"))
        elif op.name == "slice":
            start, stride = op.affines("start"), op.ints("stride")
            attrs |= {"start": (*start[:1], Affine(0), *start[1:]), "stride": (*stride[:1], 1, *stride[1:])}
        elif op.name == "concatenate":
            attrs["dim"] = op.integer("dim") + 1
        elif op.name not in ELEMENTWISE:
            raise FormatError(f"{op.name} {op.out} takes rows to which weights by key were applied")
        ins = [self._widened(op, v, per) for v in op.ins]
        self._emit(op, op.name, ins, type_, attrs, op.out)
        self.keyed[op.out] = type_

    def _widened(self, op: Op, value: str, per: int) -> str:
        """A row for each key."""
        if value in self.keyed:
            return value
        type_ = _keyed(self.types[value], per)
        dims = (0, *range(2, len(type_.shape)))
        return self._emit(op, "broadcast_in_dim", (value,), type_, {"dims": dims})

    @property
    def mesh_ranges(self) -> dict[str, tuple[int, int]]:
        return {a: (0, n) for a, n in self.mesh.axes.items()} if self.mesh else {}

    def _row_by_row(self, op: Op) -> bool:
        packed = [v in self.row_order for v in op.ins]
        kept = op.type.shape[:1] == self.types[op.ins[0]].shape[:1]
        rules: dict[str, Callable[[], bool]] = {
            "broadcast_in_dim": lambda: op.ints("dims")[0] == 0 and kept,
            "reduce": lambda: 0 not in op.ints("dims"),
            "reshape": lambda: kept,
            "slice": lambda: op.affines("start")[0] == Affine(0) and op.ints("stride")[0] == 1 and kept,
            "concatenate": lambda: op.integer("dim") > 0 and all(packed),
            "dot_general": lambda: (
                packed == [True, False] and not op.ints("lhs_batch") and 0 not in op.ints("lhs_contract")
            ),
        }
        if op.name in rules:
            return rules[op.name]()
        return op.name in ELEMENTWISE and all(v in self.row_order or v in self.same_rows for v in op.ins)

    def _make_order(self, op: Op) -> None:
        given = self.types[op.ins[0]]
        slots = given.shape[0] if len(given.shape) == 1 and given.sort == "Int" else 0
        wanted = given
        if op.name == SORT:
            self.plain(op.ins[0], f"{op.name} {op.out} sorts by")
            count = op.integer("count")
            order = Order(op.out, SORT, slots, count, count)
            self.keys[op.out] = op.ins[0], count
        elif op.name == REGROUP:
            order = replace(self.order(op), value=op.out, step=REGROUP, base=op.ins[0])
        else:
            base, group = self.order(op), self.groups.get(op.text("group"))
            axes = () if group is None else group.axes
            if group is None or self.mesh is None or group.steps or group.ranks != self.mesh.rank_lists(axes):
                raise FormatError(f"{op.name} {op.out}: {op.text('group')} is no group of ranks along axes")
            if not axes or base.count % group.size:
                raise FormatError(f"{op.name} {op.out}: {base.count} keys for {group.size} ranks")
            wanted = TensorType(given.dtype, (base.slots * group.size,))
            seq = op.integer("seq")
            order = Order(
                op.out, SHIP, base.slots * group.size, base.count, base.count // group.size,
                base.value, op.text("group"), seq,
            )  # fmt: skip
            self.shipped[seq] = SHIP, base.count
        if not slots or order.count < 1 or op.type != wanted:
            raise FormatError(f"{op.name} {op.out} : ({given}) -> {op.type}: one integer key per slot")
        self.orders[op.out] = order
        if op.name == SHIP:
            self._emit(op, "all_gather", op.ins, op.type, self._gathered(order, order.seq), op.out)
        else:
            self._same(op)

    def _move(self, op: Op) -> None:
        order = self.order(op)
        rows, result = self.types[op.ins[0]], order.value
        self.after[op.out] = order.value
        if rows.sort != "Real" or not rows.shape:
            raise FormatError(f"{op.name} {op.out}: rows are of floats, not {rows}")
        tail, slots = rows.shape[1:], rows.shape[0]
        if op.name == "pack":
            self.plain(op.ins[0], f"{op.name} {op.out} takes")
            if slots != order.slots:
                raise FormatError(f"{op.name} {op.out}: {slots} rows for {order.slots} slots")
        else:
            self.rows_in(op, 0, order.base if op.name in ("ship", "regroup") else order.value)
        if op.name.startswith("ragged"):
            self._ragged(op, order)
            return
        if op.name in ("ungroup", "ship_back"):
            result = order.base
        if op.name in ("ship", "ship_back"):
            self.shipped[op.integer("seq")] = op.name, order.seq
            slots = order.slots if op.name == "ship" else self.orders[order.base].slots
        if op.type != TensorType(rows.dtype, (slots, *tail)):
            raise FormatError(f"{op.name} {op.out} : {rows} -> {op.type}: result must have {slots} slots")
        if op.name in ("ship", "ship_back", "regroup") and op.ins[0] in self.keyed:
            raise FormatError(f"{op.name} {op.out} takes rows to which weights by key were applied")
        if op.name == "ship":
            seq = op.integer("seq")
            self._emit(op, "all_gather", op.ins[:1], op.type, self._gathered(order, seq), op.out)
        elif op.name == "ship_back":
            self._return(op, order, rows)
        elif op.ins[0] in self.keyed:
            hot = self._mask(op, order, rows.dtype)
            by = {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contract": (1,), "rhs_contract": (1,)}
            self._emit(op, "dot_general", (hot, op.ins[0]), op.type, by, op.out)
            self.absent_zero.add(op.out)
        else:
            self._same(op)
        if op.name != "unpack":
            self.row_order[op.out] = result

    @staticmethod
    def _gathered(order: Order, seq: int) -> Mapping[str, Attr]:
        return {"group": order.group, "dim": 0, "seq": seq}

    def _emit(
        self,
        op: Op,
        name: str,
        ins: Sequence[str],
        type_: TensorType,
        attrs: Mapping[str, Attr],
        out: str = "",
    ) -> str:
        """Append a plain op at the place of ``op``; ``out`` is a fresh number unless it is given."""
        if not out:
            out, self.fresh = f"%{self.fresh}", self.fresh + 1
        self.ops.append(replace(op, out=out, name=name, ins=tuple(ins), type=type_, attrs=dict(attrs)))
        return out

    def _same(self, op: Op) -> None:
        """The operand as it is: slots stay where they are, whatever rows do."""
        perm = tuple(range(len(op.type.shape)))
        self._emit(op, "transpose", op.ins[:1], op.type, {"perm": perm}, op.out)

    def _first_key(self, op: Op, order: Order, by: int, type_: TensorType) -> str:
        """A constant: the first key of the rank, and ``by`` more."""
        form, step = Affine(by), order.per
        for axis in reversed(self.groups[order.group].axes if order.group else ()):
            form = form + Affine.symbol(axis).scale(step)
            step *= self.mesh.axes[axis] if self.mesh else 1
        value: Attr = str(form.const) if form.is_const else form
        return self._emit(op, "constant", (), type_, {"value": value})

    def _return(self, op: Op, order: Order, rows: TensorType) -> None:
        """A sum over the ranks, of which one owns the key of a row; what others have there is made zero."""
        attrs: dict[str, Attr] = {"group": order.group, "kind": "add", "dim": 0, "seq": op.integer("seq")}
        if op.ins[0] in self.absent_zero:
            self._emit(op, "reduce_scatter", op.ins[:1], op.type, attrs, op.out)
            return
        keys = self.types[order.value]
        bits, wide = (TensorType("i1", shape) for shape in (keys.shape, rows.shape))
        low = self._first_key(op, order, 0, keys)
        above = self._emit(op, "compare", (order.value, low), bits, {"direction": "GE"})
        high = self._first_key(op, order, order.per, keys)
        below = self._emit(op, "compare", (order.value, high), bits, {"direction": "LT"})
        both = self._emit(op, "and", (above, below), bits, {})
        mask = self._emit(op, "broadcast_in_dim", (both,), wide, {"dims": (0,)})
        zero = self._emit(op, "constant", (), rows, {"value": "0"})
        own = self._emit(op, "select", (mask, op.ins[0], zero), rows, {})
        self._emit(op, "reduce_scatter", (own,), op.type, attrs, op.out)

    def _ragged(self, op: Op, order: Order) -> None:
        rows, other = (self.types[v] for v in op.ins[:2])
        n, width, dtype = order.slots, rows.shape[-1], rows.dtype
        dot = op.name == "ragged_dot"
        side = op.integer("contract") if dot else 0
        if dot:
            self.plain(op.ins[1], f"{op.name} {op.out} takes the weights")
            fits = len(other.shape) == 3 and side in (1, 2) and other.shape[0] == order.per
            fits = fits and other.shape[side] == width
            wanted: tuple[int, ...] = (n, other.shape[3 - side]) if fits else ()
        else:
            self.rows_in(op, 1, order.value)
            fits = len(other.shape) == 2
            wanted = (order.per, width, other.shape[-1])
        fits = fits and len(rows.shape) == 2 and other.dtype == dtype
        if not fits or op.type != TensorType(dtype, wanted):
            raise FormatError(f"{op.name} {op.out} : ({rows}, {other}) -> {op.type} of {order.per} keys")
        x, y = op.ins[:2]
        if dot and x in self.keyed:
            by: dict[str, Attr] = {
                "lhs_batch": (1,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (side,)
            }  # fmt: skip
            turned = self._emit(op, "dot_general", (x, y), TensorType(dtype, (order.per, *wanted)), by)
            self._emit(op, "transpose", (turned,), _keyed(op.type, order.per), {"perm": (1, 0, 2)}, op.out)
        elif dot:
            by = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (side,)}
            self._emit(op, "dot_general", (x, y), _keyed(op.type, order.per), by, op.out)
        else:
            hot, cube = self._mask(op, order, dtype), _keyed(rows, order.per)
            masks = self._emit(op, "broadcast_in_dim", (hot,), cube, {"dims": (0, 1)})
            own = self._emit(op, "multiply", (masks, self._widened(op, x, order.per)), cube, {})
            batch = ((1,), (1,)) if y in self.keyed else ((), ())
            by = {"lhs_batch": batch[0], "rhs_batch": batch[1], "lhs_contract": (0,), "rhs_contract": (0,)}
            self._emit(op, "dot_general", (own, y), op.type, by, op.out)
        if dot:
            self.row_order[op.out] = order.value
            self.keyed[op.out] = _keyed(op.type, order.per)

    def _mask(self, op: Op, order: Order, dtype: str) -> str:
        """1 where a slot has a key of the rank, made at its first use."""
        if (order.value, dtype) not in self.masks:
            keys = self.types[order.value]
            grid = TensorType(keys.dtype, (order.slots, order.per))
            line = TensorType(keys.dtype, (order.per,))
            number = self._emit(op, "iota", (), line, {"dim": 0})
            if order.group:
                number = self._emit(op, "add", (number, self._first_key(op, order, 0, line)), line, {})
            wide = self._emit(op, "broadcast_in_dim", (order.value,), grid, {"dims": (0,)})
            numbers = self._emit(op, "broadcast_in_dim", (number,), grid, {"dims": (1,)})
            bits = TensorType("i1", grid.shape)
            equal = self._emit(op, "compare", (wide, numbers), bits, {"direction": "EQ"})
            hot = self._emit(op, "convert", (equal,), TensorType(dtype, grid.shape), {})
            self.masks[order.value, dtype] = hot
        return self.masks[order.value, dtype]


def _keyed(type_: TensorType, per: int) -> TensorType:
    """A row for each key : [slots, keys of the rank, ...]."""
    return TensorType(type_.dtype, (*type_.shape[:1], per, *type_.shape[1:]))
