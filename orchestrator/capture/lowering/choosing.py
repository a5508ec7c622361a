"""The largest of a row, and rows in order: ``topk`` and ``sort`` along one dimension (ADR 0100).

No op of a plan sorts. An element stands at place ``t`` if ``t`` elements of its row come before it: larger
ones (or smaller, where the order ascends), and equal ones that stand first. Ids are counted so and lie in
their range, values are looked up at them. A row of ``n`` has ``n * n`` comparisons, as numbers of a type.
"""

from __future__ import annotations

from ..builder import Value
from .indexing import back, last, looked_up
from .table import Context, axis_of, lowers

#: What is taken for granted of an op that may put equal numbers in any order, on each side.
TIES = "{op}: ties are an assumption: of equal numbers the one that stands first comes first"
#: What is taken for granted of rows in an order.
DRAWN = "rows: numbers made of what a router chose are what they are on a dozen random routings (ADR 0186)"
#: The same of one that may put all its results in any order.
UNSORTED = "{op}(sorted=False): order and ties are assumptions: as sorted, of equal numbers the first first"


def chosen(c: Context, x: Value, dim: int, k: int, *, largest: bool, assumed: str) -> tuple[Value, Value]:
    """Values and ids of the first ``k`` along ``dim``; ``assumed`` is what is taken for granted of them."""
    if not x.shape:
        return x, c.b.constant(0, c.out[1])
    dim, rank = axis_of(dim, len(x.shape)), len(x.shape)
    order = last(dim, rank)
    rows = c.b.transpose(x, order)
    ids = _ids(c, rows, k, largest)
    if assumed:
        c.assumed[ids.name] = assumed.format(op=c.op.split(".")[1])
    values = looked_up(c, rows, ids)
    return c.b.transpose(values, back(order)), c.b.transpose(ids, back(order))


def masked_extreme(c: Context, x: Value, dim: int, *, largest: bool) -> Value | None:
    """The place, ``dim`` kept with size 1, of the first extreme element where a mask made others infinite;
    ``None`` where no mask has. So routers take a second choice without the first.

    No element is compared with the extreme one, which is infinite if all are.
    """
    rank = len(x.shape)
    if not rank or _allowed(c, x, largest)[0] is None:
        return None
    order = last(dim, rank)
    return c.b.transpose(_ids(c, c.b.transpose(x, order), 1, largest), back(order))


def _ids(c: Context, x: Value, k: int, largest: bool) -> Value:
    """i64[..., k]: the numbers of the first ``k`` along the last dimension of ``x``."""
    lead, n = len(x.shape) - 1, x.shape[-1]
    before = _before(c, x, largest)
    place = c.b.reduce(c.b.convert(before, "i64"), (lead + 1,), "add")
    shape = (*x.shape[:-1], k, n)
    mask = c.b.compare("EQ", c.b.insert(place, lead, k), c.b.iota(lead, shape))
    number = c.b.iota(lead + 1, shape)
    # One of each row is chosen: its number is the greatest of these.
    ids = c.b.reduce(c.b.select(mask, number, c.b.like(0, number)), (lead + 1,), "max")
    # It is in range; for who looks up there, and sees no row of the mask, it evidently is.
    evident = c.b.binary("minimum", c.b.binary("maximum", ids, c.b.like(0, ids)), c.b.like(n - 1, ids))
    c.distinct[evident.name] = lead
    return evident


def _before(c: Context, x: Value, largest: bool) -> Value:
    """i1[..., n, n]: does the element of the last dimension come before that of the one before it?

    What a mask has made infinite, so that it is chosen last, is known by the mask: a comparison of infinities
    has no meaning in a plan.
    """
    n = x.shape[-1]
    allowed, x = _allowed(c, x, largest)
    if x.dtype == "i1":
        x = c.b.convert(x, "i64")
    lead = len(x.shape) - 1
    one, other = c.b.insert(x, lead + 1, n), c.b.insert(x, lead, n)
    here, there = c.b.iota(lead, one.shape), c.b.iota(lead + 1, one.shape)
    earlier, later = c.b.compare("LT", there, here), c.b.compare("GT", there, here)
    strictly, or_equal = ("GT", "GE") if largest else ("LT", "LE")
    # No element is compared with itself: enclosures of a witness could not tell.
    nothing = c.b.constant(False, later.type)
    before = c.b.select(later, c.b.compare(strictly, other, one), nothing)
    before = c.b.select(earlier, c.b.compare(or_equal, other, one), before)
    if allowed is None:
        return before
    mine, others = c.b.insert(allowed, lead + 1, n), c.b.insert(allowed, lead, n)
    both = c.b.binary("and", others, before)
    return c.b.select(mine, both, c.b.binary("or", others, earlier))


def _allowed(c: Context, x: Value, largest: bool) -> tuple[Value | None, Value]:
    """Where ``x`` is not the infinity that is chosen last, and what it is there; ``None`` for everywhere."""
    if c.b.made_by(x, "transpose") or c.b.made_by(x, "reshape"):
        moved = c.b.draft(x)
        assert moved is not None
        allowed, inner = _allowed(c, c.b.operand(x), largest)
        if allowed is None:
            return None, x
        if moved.name == "reshape":
            return c.b.reshape(allowed, x.shape), c.b.reshape(inner, x.shape)
        perm = [int(str(p)) for p in _ints(moved.attr("perm"))]
        return c.b.transpose(allowed, perm), c.b.transpose(inner, perm)
    if c.b.made_by(x, "select"):
        mask = c.b.operand(x)
        for i in (1, 2):
            draft = c.b.made_by(c.b.operand(x, i), "constant")
            if draft is not None and draft.attr("value") == ("-inf" if largest else "inf"):
                return (c.b.unary("not", mask) if i == 1 else mask), c.b.operand(x, 3 - i)
    return None, x


def _ints(value: object) -> tuple[object, ...]:
    assert isinstance(value, tuple)
    return value


@lowers("aten.topk")
def _topk(
    c: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """Unsorted results are in an order of the kernel's own: that it is this one is assumed as well."""
    values, ids = chosen(c, x, dim, k, largest=largest, assumed=TIES if sorted else UNSORTED)
    if x.shape:
        c.routing.choose(ids, x.shape[dim], axis_of(dim, len(x.shape)))
    return values, ids


@lowers("aten.sort")
def _sort(
    c: Context, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Value, Value]:
    n = x.shape[dim] if x.shape else 1
    values, ids = chosen(c, x, dim, n, largest=descending, assumed="" if stable else TIES)
    if len(x.shape) == 1 and not descending and len(c.drawn) == 2:
        drawn, c.drawn = c.drawn, ()
        order = c.rows.sorted(x, ids, drawn[1], stable=bool(stable))
        c.drawn = drawn
        if order is not None:
            c.assumed[order.name] = DRAWN
    return values, ids
