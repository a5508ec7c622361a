"""Rows in the order that a sort of keys made, and what reads and writes them: packed ops of a plan.

An order is recognised by its numbers on random routings (:mod:`.routing`): ``index`` by ``order // k`` packs
a row for each slot, ``index`` by the inverse or ``index_put`` at the order unpacks, a ``scatter_add`` at
``order // k`` adds up what was unpacked. What has numbers and is none of these is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from certificates.plan.ops import PACKED
from certificates.plan.program import Attr
from certificates.plan.types import TensorType

from ..builder import Builder, Value
from ..errors import LoweringError
from ..recorder import GroupRef
from .kept_numbers import Numbers
from .routing import ENOUGH, Routing

_NO_ORDER = (
    "rows at numbers that a routing gives and that are no known order of rows: not that of one sort of the "
    "keys, not its inverse"
)
_TWO_SORTS = "two sorts of the same keys that need not agree in the order of equal ones"
_KNOWN = (
    "order = torch.argsort(ids.view(-1), stable=True); x[order // k]; out[order] = rows, or "
    "out.index_add_(0, order // k, rows)"
)


@dataclass(frozen=True, eq=False)
class Order:
    """An order of rows: its ``value`` in the program, the ``step`` that makes it, ``count`` keys of which the
    rank has ``per``; of each row as they lie where it lay before, and which of the rank's keys it has.

    Of rows that were sent: over which ``group``, how many ``went`` to each member, and ``came`` from it.
    """

    value: Value
    step: str
    count: int
    per: int
    places: Numbers
    keys: Numbers
    base: Order | None = None
    group: GroupRef | None = None
    went: Numbers = ()
    came: Numbers = ()

    @property
    def rows(self) -> int:
        """Slots: as many rows as there may be."""
        return self.value.shape[0]

    def ends(self) -> Numbers:
        """Where the rows of each key end."""
        return tuple(torch.bincount(k, minlength=self.per).cumsum(0) for k in self.keys)


class Shipped(Order):
    """Rows that were sent."""

    def by_source(self) -> Numbers:
        """How many rows of each of the rank's keys came from each member."""
        found = []
        for keys, came in zip(self.keys, self.came, strict=True):
            parts = keys.split(came.tolist())
            found.append(torch.cat([torch.bincount(k, minlength=self.per) for k in parts]))
        return tuple(found)


@dataclass
class RowOrders:
    """The orders of one program, and which values are packed in one."""

    b: Builder
    routing: Routing
    #: The place of the traced rank in a group.
    place: Callable[[GroupRef], int]
    orders: list[Order] = field(default_factory=list)
    _of: dict[str, Order | None] = field(default_factory=dict)
    #: By order the keys that are sorted, and whether equal ones keep their places.
    _sorts: dict[str, tuple[str, bool]] = field(default_factory=dict)

    # --- orders ---------------------------------------------------------------------------------------------

    def sorted(self, keys: Value, places: Value, found: Numbers, *, stable: bool) -> Value | None:
        """``places``, in the draws ``found``, are those of a sort of 1-d ``keys`` that ascends; of what
        routers chose it is an order, which is returned."""
        count, numbers = self.routing.keys(keys), self.routing.of(keys)
        if count is None or numbers is None:
            return None
        if any(of == keys.name and not (kept and stable) for of, kept in self._sorts.values()):
            raise LoweringError(_TWO_SORTS, instead="one sort of the keys, or argsort(…, stable=True)")
        inverse = _inverted(found)
        if inverse is None or _apart(found, inverse) < ENOUGH:
            return None  # too few rows to tell an order from its inverse
        value = self.b.emit("sort_rows", (keys,), keys.type, shared=stable, count=count)
        self._sorts[value.name] = keys.name, stable
        self.routing.whole.add(places.name)
        if all(o.value != value for o in self.orders):
            rows = tuple(k[s] for k, s in zip(numbers, found, strict=True))
            self.orders.append(Order(value, "sort_rows", count, count, found, rows))
        return value

    def of(self, x: Value) -> Order | None:
        """The order in which ``x`` is packed; more than one is an error."""
        if not self.orders:
            return None
        waiting = [x.name]
        while waiting:
            draft = self.b.drafts.get(waiting[-1])
            ins = () if draft is None or draft.name in PACKED else draft.ins
            missing = [v for v in ins if v not in self._of] if waiting[-1] not in self._of else []
            waiting += missing
            if missing:
                continue
            name = waiting.pop()
            orders = {o.value.name: o for v in ins if (o := self._of[v]) is not None}
            if len(orders) > 1:
                raise LoweringError("rows of two orders in one op: no order says which belong together")
            self._of.setdefault(name, next(iter(orders.values()), None))
        return self._of[x.name]

    def _packed(
        self, name: str, ins: Sequence[Value], type_: TensorType, into: Order | None, **attrs: Attr
    ) -> Value:
        found = self.b.emit(name, ins, type_, shared=True, **attrs)
        self._of[found.name] = into
        return found

    # --- what reads and writes rows -------------------------------------------------------------------------

    def read(self, x: Value, index: Value) -> Value | None:
        """``x[index]`` along dimension 0; ``None`` if no order has to do with it."""
        if not self._concerned(x, index):
            return None
        numbers, order = _flat(self.routing.of(index)), self.of(x)
        result = None if numbers is None else self._moved(x, order, numbers)
        if result is not None:
            return self.b.reshape(result, (*index.shape, *x.shape[1:]))
        self._known(index, order)
        return None

    def write(self, x: Value, index: Value, rows: Value, *, add: bool) -> Value | None:
        """``x`` with ``rows`` written at ``index`` of dimension 0, or added there."""
        if not self._concerned(rows, index):
            return None
        numbers, order = _flat(self.routing.of(index)), self.of(rows)
        rows = self.b.reshape(rows, (index.type.size, *x.shape[1:]))
        result = self._summed(rows, order, numbers, x.shape[0]) if add and numbers is not None else None
        if result is None and numbers is not None and x.shape[0] == index.type.size:
            places = _inverted(numbers)
            result = None if places is None else self._moved(rows, order, places)
        if result is None:
            self._known(index, order)
            return None
        return added(self.b, x, result) if add else result

    def _summed(self, rows: Value, order: Order | None, numbers: Numbers, count: int) -> Value | None:
        """Rows added up in ``count`` places, those of ``numbers``."""
        if order is None and _one_for_all(numbers):
            return _gathered(self.b, rows, numbers[0].long(), count)
        table = None if order is None or order.step != "sort_rows" else _looked_up(numbers, order.places)
        if order is None or table is None:
            return None
        return _gathered(self.b, self._undone(rows, order), table, count)

    def _moved(self, x: Value, order: Order | None, numbers: Numbers) -> Value | None:
        """The rows of ``x`` at ``numbers``."""
        if order is None and _one_for_all(numbers):
            return _spread(self.b, x, numbers[0].long())
        if order is None:
            table = self._table(numbers)
            spread = None if table is None else _spread(self.b, x, table[1])
            if table is None or spread is None:
                return None
            return self._packed("pack", (spread, table[0].value), spread.type, table[0])
        if order.step == "ship_rows":
            grouped = self._grouped(order, numbers)
            return None if grouped is None else self._packed("regroup", (x, grouped.value), x.type, grouped)
        return self._undone(x, order) if _inverse(numbers, order.places) else None

    def _undone(self, x: Value, order: Order) -> Value:
        name = "unpack" if order.step == "sort_rows" else "ungroup"
        return self._packed(name, (x, order.value), x.type, order.base)

    # --- ranks ----------------------------------------------------------------------------------------------

    def counts(self, x: Value, group: GroupRef, send: Callable[..., Value]) -> Numbers | None:
        """Counts of each key's rows change hands: rows may go to the members that own their keys.

        ``x`` has them by key, or by member of the group. What comes is known if every member does the same;
        so the order of what is sent is made here, where all of them are. ``send`` makes the op that meets.
        """
        numbers, size = _flat(self.routing.of(x)), len(group.ranks)
        for order in self.orders if numbers is not None and size > 1 else ():
            if order.step != "sort_rows" or order.count % size:
                continue
            by_key = tuple(torch.bincount(k, minlength=order.count) for k in order.keys)
            for form, mine in (("key", by_key), ("member", _by_member(by_key, size))):
                if numbers is not None and _same(numbers, mine):
                    shipped = self._shipped(order, group, form, send)
                    found = shipped.by_source() if form == "key" else shipped.came
                    return tuple(n.reshape(x.shape) for n in found)
        return None

    def _shipped(self, order: Order, group: GroupRef, form: str, send: Callable[..., Value]) -> Shipped:
        size, per = len(group.ranks), order.count // len(group.ranks)
        keys, rows, place = self.b.operand(order.value), order.rows, self.place(group)
        others, mine = self.routing.elsewhere(keys, size), self.routing.of(keys)
        assert mine is not None
        firsts = rows * torch.arange(size)[:, None]
        found, places, came = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
        for draw, (own, lie) in enumerate(zip(mine, order.places, strict=True)):
            all_keys, lies = torch.sort(torch.stack([n[draw] for n in others]), dim=1, stable=True)
            all_keys[place], lies[place] = own[lie], lie
            here = all_keys // per == place
            found.append(all_keys[here] - place * per)
            places.append((lies + firsts)[here])
            came.append(here.sum(dim=1))
        went = tuple(torch.bincount(k // per, minlength=size) for k in order.keys)
        if _apart(went, tuple(came)) < ENOUGH:
            raise LoweringError("too few rows to tell what goes from what comes")
        value = send("ship_rows", order.value, None, rows * size, form=form)
        made = Shipped(
            value, "ship_rows", order.count, per, tuple(places), tuple(found), order, group, went, tuple(came)
        )
        self.orders.append(made)
        return made

    def exchange(
        self,
        x: Value,
        went: Numbers | None,
        came: Numbers | None,
        group: GroupRef,
        send: Callable[..., Value],
    ) -> Value | None:
        """Rows sent by counts, to the owners of their keys or back; ``None`` if these are no such counts."""
        order = self.of(x)
        if order is None or went is None or came is None:
            return None
        for shipped in self.orders:
            if shipped.step != "ship_rows" or shipped.group != group or shipped.base is None:
                continue
            if order == shipped.base and _same(went, shipped.went) and _same(came, shipped.came):
                result = send("ship", x, shipped.value, shipped.rows)
                self._of[result.name] = shipped
                return result
            if order == shipped and _same(went, shipped.came) and _same(came, shipped.went):
                result = send("ship_back", x, shipped.value, shipped.base.rows)
                self._of[result.name] = shipped.base
                return result
        return None

    def _grouped(self, base: Order, numbers: Numbers) -> Order | None:
        """The order in which rows that were sent lie by key, if ``numbers`` are their places."""
        if _inverted(numbers) is None or any(
            len(n) != len(k) or bool((k[n.long()].diff() < 0).any())
            for n, k in zip(numbers, base.keys, strict=True)
        ):
            return None
        for order in self.orders:
            if order.step == "regroup_rows" and order.base == base and _same(order.places, numbers):
                return order
        value = self.b.emit("regroup_rows", (base.value,), base.value.type, shared=False)
        keys = tuple(k[n.long()] for n, k in zip(numbers, base.keys, strict=True))
        made = replace(base, value=value, step="regroup_rows", places=numbers, keys=keys, base=base)
        self.orders.append(made)
        return made

    # --- products, and an index of two dimensions -----------------------------------------------------------

    def read_along(self, x: Value, index: Value) -> Value | None:
        """``gather`` along dimension 0 by an index that is the same along all others."""
        line = self._line(index)
        return self.read(x, line) if line is not None and index.shape[1:] == x.shape[1:] else None

    def write_along(self, x: Value, index: Value, rows: Value, *, add: bool) -> Value | None:
        """``scatter`` along dimension 0 by an index that is the same along all others."""
        line = self._line(index)
        fits = line is not None and index.shape == rows.shape and index.shape[1:] == x.shape[1:]
        return self.write(x, line, rows, add=add) if fits and line is not None else None

    def _line(self, index: Value) -> Value | None:
        """What is spread along all dimensions but the first."""
        spread = self.b.made_by(index, "broadcast_in_dim")
        if len(index.shape) == 1:
            return index
        if spread is None:
            return self.b.reshape(index, index.shape[:1]) if index.shape[0] == index.type.size else None
        source, dims = self.b.operand(index), spread.attr("dims")
        whole = (
            source.type.size == source.shape[0] == index.shape[0] and isinstance(dims, tuple) and dims[0] == 0
        )
        return self.b.reshape(source, source.shape[:1]) if source.shape and whole else None

    def product(self, x: Value, y: Value, ends: Value) -> Value:
        """Rows times the weights of their key, or by key the sum of products of rows; ``ends`` are the ends
        of the keys' rows."""
        turned = len(y.shape) == 2
        if turned:
            x = self.b.transpose(x, (1, 0))
        order, found = self.of(x), self.routing.of(ends)
        if order is None or found is None:
            raise LoweringError(
                "a grouped product of rows that no sort of the keys has packed", instead=_KNOWN
            )
        if not _same(found, order.ends()):
            raise LoweringError("a grouped product whose groups are not the rows of each key")
        if turned:
            if self.of(y) != order:
                raise LoweringError("a grouped product of rows of two orders")
            shape: tuple[int, ...] = (order.per, x.shape[1], y.shape[1])
            return self._packed("ragged_outer", (x, y, order.value), TensorType(x.dtype, shape), None)
        side = 1
        if self.b.made_by(y, "transpose") and self.b.transpose(y, (0, 2, 1)) == self.b.operand(y):
            y, side = self.b.operand(y), 2
        if y.shape[0] != order.per:
            raise LoweringError(f"a grouped product with {y.shape[0]} weights for {order.per} keys")
        shape = (order.rows, y.shape[3 - side])
        ins = (x, y, order.value)
        return self._packed("ragged_dot", ins, TensorType(x.dtype, shape), order, contract=side)

    # --- numbers --------------------------------------------------------------------------------------------

    def _concerned(self, x: Value, index: Value) -> bool:
        return bool(self.orders) and x.type.sort == "Real" and bool(x.shape) and self.routing.rests(index)

    def _known(self, index: Value, order: Order | None) -> None:
        """An error for rows at numbers of no order, unless plain ops say the same."""
        if order is not None or self.b.tainted(index):
            raise LoweringError(_NO_ORDER, instead=_KNOWN)

    def _table(self, numbers: Numbers) -> tuple[Order, torch.Tensor] | None:
        """The order, and what each slot stands for, if ``numbers`` are that of each row's slot."""
        found = []
        for order in self.orders:
            table = _looked_up(numbers, order.places) if order.step == "sort_rows" else None
            if table is not None:
                found.append((order, table))
        return found[0] if len(found) == 1 else None


def added(b: Builder, x: Value, rows: Value) -> Value:
    """``rows`` added to ``x``; to zeros, which is where code adds up, they are what they were."""
    zeros = b.made_by(x, "constant")
    return rows if zeros is not None and zeros.attr("value") == "0" else b.binary("add", x, rows)


def _flat(numbers: Numbers | None) -> Numbers | None:
    return None if numbers is None else tuple(n.flatten() for n in numbers)


def _apart(a: Numbers, b: Numbers) -> int:
    """On how many draws they differ."""
    return sum(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _one_for_all(numbers: Numbers) -> bool:
    """Are they the same on all draws?"""
    return all(torch.equal(numbers[0], n) for n in numbers)


def _same(a: Numbers, b: Numbers) -> bool:
    return all(x.shape == y.shape and torch.equal(x.long(), y.long()) for x, y in zip(a, b, strict=True))


def _looked_up(numbers: Numbers, slots: Numbers) -> torch.Tensor | None:
    """The table in which ``numbers`` are found at ``slots``, one for all draws."""
    if any(len(n) != len(s) for n, s in zip(numbers, slots, strict=True)):
        return None
    table = torch.empty_like(slots[0])
    table[slots[0]] = numbers[0].long()
    fits = all(torch.equal(table[s], n.long()) for n, s in zip(numbers, slots, strict=True))
    return table if fits else None


def _inverse(numbers: Numbers, slots: Numbers) -> bool:
    """Does slot ``s`` have the number of its row?"""
    return all(
        len(n) == len(s) and torch.equal(n.long()[s], torch.arange(len(s)))
        for n, s in zip(numbers, slots, strict=True)
    )


def _inverted(numbers: Numbers) -> Numbers | None:
    """The place of each number, if they are all numbers up to their count, each once."""
    found = []
    for n in numbers:
        line = torch.arange(len(n))
        places = torch.full_like(line, -1)
        if len(n) and (int(n.min()) < 0 or int(n.max()) >= len(n)):
            return None
        places[n.long()] = line
        if bool((places < 0).any()):
            return None
        found.append(places)
    return tuple(found)


def _by_member(by_key: Numbers, size: int) -> Numbers:
    return tuple(n.reshape(size, -1).sum(1) for n in by_key)


def _digit(table: torch.Tensor, rows: int) -> int | None:
    """Where slots of ``rows`` have their copies: 1 if those of a row follow one another, 0 if all rows do;
    ``None`` if ``table``, which row each slot is of, is neither."""
    slots = len(table)
    if slots % rows:
        return None
    line = torch.arange(slots)
    known = (1, line // (slots // rows)), (0, line % rows)
    return next((dim for dim, found in known if torch.equal(table, found)), None)


def _spread(b: Builder, x: Value, table: torch.Tensor) -> Value | None:
    """A row of ``x`` for each slot."""
    slots, rows = len(table), x.shape[0]
    dim = _digit(table, rows)
    if dim is None or slots == rows:
        return None if dim is None else x
    return b.reshape(b.insert(x, dim, slots // rows), (slots, *x.shape[1:]))


def _gathered(b: Builder, x: Value, table: torch.Tensor, rows: int) -> Value | None:
    """The sum of the slots of each row."""
    slots, dim = len(table), _digit(table, rows)
    if dim is None or slots == rows:
        return None if dim is None else x
    shape = (rows, slots // rows) if dim else (slots // rows, rows)
    return b.reduce(b.reshape(x, (*shape, *x.shape[1:])), (dim,), "add")
