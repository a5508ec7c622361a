"""Random small programs over the whole op table, and block-constant inputs for them."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.program import Program

DIMS = (1, 2, 3, 4, 6)


def random_program(rng: random.Random, length: int = 12) -> Program:
    """A specification of about ``length`` ops; every value that nothing reads becomes an output."""
    b = ProgramBuilder()
    pool = [
        b.input("a", f"f32[{rng.choice(DIMS)},{rng.choice(DIMS)}]"),
        b.input("b", f"f32[{rng.choice(DIMS)},{rng.choice(DIMS)},{rng.choice(DIMS)}]"),
        b.input("i", f"i64[{rng.choice(DIMS)}]"),
        b.input("j", f"i64[{rng.choice(DIMS)},{rng.choice(DIMS)}]"),
    ]
    for _ in range(length):
        made = _random_op(b, rng, pool)
        if made is not None and made.type.size <= 3000:
            pool.append(made)
    for k, value in enumerate(pool[4:]):
        b.output(f"y{k}", value)
    if len(pool) == 4:
        b.output("y", pool[0])
    return b.build()


def _of(
    rng: random.Random, pool: list[Value], sort: str, shape: tuple[int, ...] | None = None
) -> Value | None:
    fit = [v for v in pool if v.type.sort == sort and (shape is None or v.shape == shape)]
    return rng.choice(fit[-6:]) if fit else None


def _like(rng: random.Random, pool: list[Value], x: Value) -> Value:
    """A recent value of the type of ``x``."""
    return rng.choice([v for v in pool if v.type == x.type][-4:])


def _random_op(b: ProgramBuilder, rng: random.Random, pool: list[Value]) -> Value | None:
    x = rng.choice(pool)
    shape, rank = x.shape, len(x.shape)
    match rng.randrange(20):
        case 0 if x.type.sort == "Real":
            return rng.choice((b.tanh, b.sine, b.cosine, b.logistic, b.abs, b.negate))(x)
        case 1 if x.type.sort == "Real":
            positive = b.exponential(b.tanh(x))
            return rng.choice((b.log, b.sqrt, b.rsqrt))(positive)
        case 2 | 3 if x.type.sort != "Bool":
            y = _like(rng, pool, x)
            return rng.choice((b.maximum, b.minimum, Value.__add__, Value.__sub__, Value.__mul__))(x, y)
        case 4 if x.type.sort != "Bool":
            y = _like(rng, pool, x)
            return b.compare(x, y, rng.choice(("EQ", "NE", "LT", "LE", "GT", "GE")))
        case 5 if rank:
            sort = rng.choice(("i64", "f32"))
            return b.iota(f"{sort}[{','.join(map(str, shape))}]", rng.randrange(rank))
        case 6:
            p = _of(rng, pool, "Bool")
            if p is not None:
                v = _of(rng, pool, "Real", p.shape) or _of(rng, pool, "Int", p.shape)
                if v is not None:
                    return b.select(p, v, b.constant(2, v.type))
        case 7 if x.type.sort != "Bool":
            return b.convert(x, rng.choice(("f32", "bf16")) if x.type.sort == "Real" else "f32")
        case 8 if x.type.sort == "Bool":
            return rng.choice((b.convert(x, "f32"), b.convert(x, "i64"), b.logical_not(x)))
        case 9 if rank < 4:
            extra = rng.choice(DIMS)
            at = rng.randrange(rank + 1)
            dims = [d if d < at else d + 1 for d in range(rank)]
            return b.broadcast(x, (*shape[:at], extra, *shape[at:]), dims)
        case 10 | 11:
            return b.reshape(x, _factors(rng, x.type.size))
        case 12:
            perm = list(range(rank))
            rng.shuffle(perm)
            return b.transpose(x, perm)
        case 13 if rank:
            stride = [rng.choice((1, 1, 2)) for _ in shape]
            start = [rng.randrange(n) for n in shape]
            sizes = [
                rng.randint(1, (n - s - 1) // t + 1) for n, s, t in zip(shape, start, stride, strict=True)
            ]
            return b.slice(x, start, sizes, stride)
        case 14 if rank and x.type.sort != "Bool":
            low, high = ([rng.randrange(3) for _ in shape] for _ in range(2))
            return b.pad(x, low, high, rng.randrange(3))
        case 15 if rank:
            y = _like(rng, pool, x)
            return b.concatenate([x, y, x][: rng.randint(1, 3)], rng.randrange(rank))
        case 16 if rank:
            dims = sorted(rng.sample(range(rank), rng.randint(1, rank)))
            kinds = ("and", "or") if x.type.sort == "Bool" else ("add", "max", "min")
            return b.reduce(x, dims, rng.choice(kinds))
        case 17:
            y = _of(rng, pool, "Int")
            if y is not None and rank:
                axis = rng.randrange(rank)
                limit = b.constant(shape[axis] - 1, y.type)
                index = b.minimum(b.maximum(y, b.constant(0, y.type)), limit)
                batch = 1 if axis and y.shape and y.shape[0] == shape[0] and rng.random() < 0.7 else 0
                return b.gather(x, index, axis, batch)
        case _ if x.type.sort == "Real":
            y = _of(rng, pool, "Real")
            if y is not None and y.type.dtype == x.type.dtype:
                pairs = [(i, j) for i, n in enumerate(shape) for j, m in enumerate(y.shape) if n == m]
                rng.shuffle(pairs)
                chosen: list[tuple[int, int]] = []
                for i, j in pairs:
                    if all(i != u and j != v for u, v in chosen) and rng.random() < 0.7:
                        chosen.append((i, j))
                cut = rng.randint(0, len(chosen))
                batch, contract = chosen[:cut], chosen[cut:]
                return b.dot(
                    x, y, ([i for i, _ in contract], [j for _, j in contract]),
                    ([i for i, _ in batch], [j for _, j in batch]),
                )  # fmt: skip
    return None


def _factors(rng: random.Random, size: int) -> list[int]:
    out = []
    while size > 1 and len(out) < 4:
        n = rng.choice([d for d in range(1, size + 1) if size % d == 0])
        out.append(n)
        size //= n
    return [*out, size] if size > 1 else out


def random_blocks(
    program: Program, rng: random.Random
) -> dict[str, tuple[list[tuple[int, ...]], list[Fraction | int | bool]]]:
    """Cuts and values of every input; integers in [0, 6)."""
    out = {}
    for name, type_ in program.inputs.items():
        cuts = [tuple(sorted({0, n, *(rng.randrange(n + 1) for _ in range(2))})) for n in type_.shape]
        count = math.prod(len(c) - 1 for c in cuts)
        values: list[Fraction | int | bool] = [
            rng.randrange(6) if type_.sort == "Int" else Fraction(rng.randint(-9, 9), 4) for _ in range(count)
        ]
        out[name] = (cuts, values)
    return out
