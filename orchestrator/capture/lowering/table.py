"""The table of lowerings and what a lowering may use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from certificates.plan.affine import Affine
from certificates.plan.types import TensorType

from ..builder import Builder, Literal, Meeting, Value, wraps
from ..errors import Frame, GroupError, LoweringError
from ..recorder import GroupRef, Node
from .integral import as_integers
from .kept_numbers import Numbers
from .routing import Routing
from .row_orders import RowOrders

Operand = Value | Literal
#: A lowering of an op on values: ``(context, **arguments) -> result(s)``. Of several results there is one
#: entry for each result of the op, ``None`` where an output mask asks for none.
Lower = Callable[..., Value | Sequence[Value | None]]
#: A lowering of an op that works on storages: it reads and writes through the driver itself.
Effect = Callable[[Any, Node], None]


@dataclass(frozen=True)
class Rule:
    """A lowering, and the arguments of the op's schema that change no number of the result."""

    lower: Lower
    ignores: frozenset[str] = frozenset()


LOWERINGS: dict[str, Rule] = {}
EFFECTS: dict[str, Effect] = {}


_L = TypeVar("_L", bound=Lower)


def lowers(*names: str, ignores: Collection[str] = ()) -> Callable[[_L], _L]:
    """Register a lowering for op names without overload, or with it where overloads differ.

    It must take every argument of the op's schema except those that it ``ignores`` by name: see
    :mod:`.arguments`.
    """

    def register(function: _L) -> _L:
        LOWERINGS.update(dict.fromkeys(names, Rule(function, frozenset(ignores))))
        return function

    return register


def effects(*names: str) -> Callable[[Effect], Effect]:
    """Register a storage-level lowering."""

    def register(function: Effect) -> Effect:
        EFFECTS.update(dict.fromkeys(names, function))
        return function

    return register


def find(op: str) -> Rule | None:
    """The lowering of ``namespace.name.overload``; an in-place op is its functional form, written back."""
    base = op.rsplit(".", 1)[0]
    functional = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    return LOWERINGS.get(op) or LOWERINGS.get(functional)


@dataclass
class Attention:
    """What a fused attention kernel saved for its backward, as values."""

    operands: tuple[str, ...]
    weights: Value


@dataclass(frozen=True, slots=True)
class Rooted:
    """What a rank says of a collective with a root: which rendezvous, of whom, by which call, the root's
    place among the members, and the user's line."""

    meeting: Meeting
    members: tuple[int, ...]
    call: str
    root: int
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class Called:
    """How many collectives and barriers a rank calls on a communicator, given by axes and ordinal, and the
    user's line of the last one."""

    key: tuple[tuple[str, ...], int]
    count: int
    frame: Frame | None


@dataclass(frozen=True)
class OneHotRows:
    """What is 0 along ``axis`` but at one place, which there is: ``total`` is what stands there, of size 1
    along the axis. ``factors`` are one-hot rows and what they are multiplied with, where a gradient has that
    form.
    """

    axis: int
    total: Value
    factors: tuple[Value, Value] | None = None


@dataclass
class Context:
    """Passed to every lowering: the builder, the types of the results, and facts noted by earlier ops."""

    b: Builder
    group_axes: Callable[[GroupRef], tuple[str, ...]]
    out: tuple[TensorType, ...] = ()
    op: str = ""
    #: Saved attention weights by the kernel's two outputs, see :mod:`.attention`.
    attention: dict[tuple[str, str], Attention] = field(default_factory=dict)
    #: Tensors that are 0 but for one place of each row, by name.
    one_hot_rows: dict[str, OneHotRows] = field(default_factory=dict)
    #: By the name of an integer tensor the axis along which all its elements differ, see :mod:`.choosing`.
    distinct: dict[str, int] = field(default_factory=dict)
    #: By the name of a value what is taken for granted of PyTorch where an output depends on it.
    assumed: dict[str, str] = field(default_factory=dict)
    #: Communicators by axes and ordinal, and how many collectives each has seen.
    groups: dict[tuple[tuple[str, ...], int], int] = field(default_factory=dict)
    #: Those of them that nothing but barriers was called on.
    barred: set[tuple[tuple[str, ...], int]] = field(default_factory=set)
    #: By communicator the line of the last call.
    latest: dict[tuple[tuple[str, ...], int], Frame | None] = field(default_factory=dict)
    #: The call of a collective with a root that is lowered now, and that root's place in the group.
    root: tuple[str, int] | None = None
    #: What such calls said of their rendezvous.
    roots: list[Rooted] = field(default_factory=list)
    #: The rank that is traced; ``None`` for the single device.
    rank: int | None = None
    #: Coordinates of a rank on the mesh.
    coordinates: Callable[[int], Sequence[int]] = lambda rank: (rank,)
    #: Results of the op on drawn routings, see :mod:`.routing`.
    drawn: tuple[Numbers, ...] = ()
    #: Numbers of batches of messages, in order.
    batches: dict[int, int] = field(default_factory=dict)
    #: How many messages went through each channel of this rank: send or recv, the other end, communicator.
    messages: dict[tuple[str, int, GroupRef], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Integers made of a router's choice, and orders of rows.
        self.routing = Routing(self.b)
        self.rows = RowOrders(self.b, self.routing, lambda group: group.ranks.index(self.rank or 0))

    def value(self, x: Operand, dtype: str) -> Value:
        """An operand in ``dtype``; a Python number becomes a scalar constant."""
        if isinstance(x, Value):
            counted = x.type.sort == "Real" and dtype == "i64"
            return (as_integers(self.b, x, dtype) if counted else None) or self.b.convert(x, dtype)
        if isinstance(x, complex):
            raise self.refuse(f"the complex literal {x!r}")
        if isinstance(x, float) and TensorType(dtype, ()).sort == "Int":
            if not x.is_integer():
                raise LoweringError(f"literal {x!r} among integers", op=self.op)
            x = int(x)
        return self.b.constant(x, TensorType(dtype, ()))

    def pair(self, x: Operand, y: Operand) -> tuple[Value, Value]:
        """Two operands of a comparison in a type that holds both: Bool, or else integers, or else reals."""
        sort = max(self.sort(x), self.sort(y), key=_SORTS.index)
        dtypes = {v.dtype for v in (x, y) if isinstance(v, Value) and v.type.sort == sort}
        dtype = dtypes.pop() if len(dtypes) == 1 else {"Bool": "i1", "Int": "i64", "Real": "f64"}[sort]
        return self.value(x, dtype), self.value(y, dtype)

    def sort(self, x: Operand) -> str:
        """Bool, Int or Real, of a tensor or a Python number."""
        if isinstance(x, Value):
            return x.type.sort
        return "Bool" if isinstance(x, bool) else "Int" if isinstance(x, int) else "Real"

    def refuse(self, message: str, instead: str | None = None) -> LoweringError:
        return LoweringError(message, op=self.op, instead=instead)

    def is_member(self, group: GroupRef, place: int) -> bool:
        """Is the traced rank the member at ``place`` of the group?"""
        return group.ranks[place] == self.rank

    def collective(
        self,
        name: str,
        x: Value,
        group: GroupRef,
        shape: Sequence[int],
        order: Value | None = None,
        **attrs: Any,
    ) -> Value:
        """A collective over ``group``; over a single rank it is the identity. ``seq`` is per communicator.

        Sums of small integers, which wrap around, and truth values are a :class:`LoweringError`. ``order`` is
        that of the rows of ``x``.
        """
        axes = self.group_axes(group)
        if len(group.ranks) == 1:
            return x
        if not axes:
            raise GroupError(
                f"{name} over the group {list(group.ranks)}, which is no fibre of mesh axes",
                op=self.op,
                instead="Definition.mesh with an axis for every way in which ranks are grouped, and "
                "its groups: "
                'mesh["dp"].get_group()',
            )
        seq = self.next(group)
        self.barred.discard((axes, group.ordinal))
        self.carries(name, x, attrs.get("kind"))
        result = TensorType(x.dtype, tuple(shape))
        named = communicator(axes, group.ordinal)
        if self.root is not None:
            call, place = self.root
            self.roots.append(Rooted((named, seq), group.ranks, call, place, self.b.frame))
        ins = (x,) if order is None else (x, order)
        return self.b.emit(name, ins, result, shared=False, group=named, seq=seq, **attrs)

    def next(self, group: GroupRef) -> int:
        """The place of a call among those of a communicator; a barrier, which no plan has, takes one too."""
        key = self.group_axes(group), group.ordinal
        self.barred |= set() if key in self.groups else {key}
        self.groups[key] = self.groups.get(key, -1) + 1
        self.latest[key] = self.b.frame
        return self.groups[key]

    def carries(self, name: str, x: Value, kind: str | None = None) -> None:
        """A :class:`LoweringError` if what ranks exchange is not a number, or a sum of it wraps around."""
        if x.type.sort == "Bool":
            raise self.refuse(f"{name} of {x.type}: collectives of a plan carry numbers", _NUMBERS)
        if wraps(x.dtype) and kind == "add":
            raise self.refuse(f"{name} of {x.type} by a sum, which wraps around", _WIDER)

    @contextmanager
    def rooted(self, call: str, place: int) -> Iterator[None]:
        """Collectives inside stand for this call, whose root is at ``place`` of the group."""
        self.root = call, place
        try:
            yield
        finally:
            self.root = None

    def message(
        self,
        name: str,
        ins: Sequence[Value],
        type_: TensorType,
        group: GroupRef,
        peer: int,
        tag: int,
        batch: int | None = None,
    ) -> Value:
        """One end of a message between this rank and rank ``peer``, and what the other end is found by.

        Messages of one channel, from a rank to another on one communicator, arrive in the order in which they
        are sent: ``number`` counts them.
        """
        if peer == self.rank:
            raise GroupError("a rank sends to itself", op=self.op, instead="tensor.clone()")
        key = name, peer, group
        number = self.messages[key] = self.messages.get(key, -1) + 1
        axes = self.group_axes(group)
        # Which group that is no fibre of axes it is say its members, which may differ from rank to rank.
        members = () if axes else tuple(map(Affine, group.ranks))
        channel = communicator(axes or (f"of_{len(members)}",), group.ordinal)
        there = tuple(map(Affine, self.coordinates(peer)))
        end = {"to" if name == "send" else "from": there, "members": members}
        together = -1 if batch is None else self.batches.setdefault(batch, len(self.batches))
        return self.b.emit(
            name,
            ins,
            type_,
            shared=False,
            channel=channel,
            number=number,
            tag=tag,
            batch=together,
            **end,
        )


def communicator(axes: Sequence[str], ordinal: int) -> str:
    """The plan's name of a group; a further communicator over the same members has a number."""
    return "_".join(axes) + (f".{ordinal}" if ordinal else "")


_NUMBERS = (
    "tensor.to(torch.int32) before the call and tensor.bool() after it: MAX of 0 and 1 is OR, MIN is AND, "
    "and a SUM counts"
)
_WIDER = "tensor.to(torch.int64) before the call"
_SORTS = ("Bool", "Int", "Real")


def axis_of(dim: int, rank: int) -> int:
    """A dimension counted from the front; a scalar has one dimension to PyTorch."""
    return dim % rank if rank else 0


def dims_of(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    """Non-negative reduction dimensions; none named means all."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return list(range(rank))
    return sorted(d % rank for d in ([dim] if isinstance(dim, int) else dim)) if rank else []
