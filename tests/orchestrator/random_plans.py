"""Random plans that are right by construction: one program on a device, and the same on a mesh.

Every tensor of the pair is tracked with its layout: per mesh axis the dimension that it shards. Each step
keeps the pair in line, with the collectives and slices that a framework would use.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Placement, Shard
from certificates.plan.plan import Plan


@dataclass(frozen=True)
class Pair:
    """A tensor of the specification, its counterpart, and ``{axis: sharded dimension}``."""

    spec: Value
    plan: Value
    layout: tuple[tuple[str, int], ...] = ()

    def axis_of(self, dim: int) -> str | None:
        return next((a for a, d in self.layout if d == dim), None)

    def placements(self) -> dict[str, Placement]:
        return {a: Shard(d) for a, d in self.layout}


class Generator:
    """Grows a pool of pairs. All randomness comes from ``rng``."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.mesh = rng.choice([{"dp": 2, "tp": 2}, {"dp": 2}, {"dp": 3, "tp": 2}, {"tp": 4}])
        self.s, self.p = ProgramBuilder(), ProgramBuilder(self.mesh)
        self.inputs: dict[str, dict[str, Placement]] = {}
        self.pool: list[Pair] = []

    def input(self, shape: tuple[int, ...], layout: tuple[tuple[str, int], ...]) -> Pair:
        """A new input under a layout; shapes are those of the specification."""
        name = f"in{len(self.inputs)}"
        local = list(shape)
        for a, d in layout:
            local[d] //= self.mesh[a]
        pair = Pair(self.s.input(name, _type(shape)), self.p.input(name, _type(local)), layout)
        self.inputs[name] = pair.placements()
        self.pool.append(pair)
        return pair

    def random_input(self) -> Pair:
        axes = self.rng.sample(list(self.mesh), self.rng.randint(0, len(self.mesh)))
        shape = [self.rng.choice((2, 3, 4)) for _ in range(2)]
        layout = []
        for dim, axis in enumerate(axes[:2]):
            shape[dim] *= self.mesh[axis]
            layout.append((axis, dim))
        return self.input((shape[0], shape[1]), tuple(layout))

    def step(self) -> None:
        """Append one operation, if the one that was drawn fits."""
        made = self.rng.choice(STEPS)(self, self.rng.choice(self.pool))
        if made is not None:
            self.pool.append(made)

    # --- operations ----------------------------------------------------------------------------------------

    def unary(self, x: Pair) -> Pair:
        name = self.rng.choice(("tanh", "negate", "sine", "exponential_of_tanh"))
        if name == "exponential_of_tanh":
            return replace(x, spec=self.s.exponential(self.s.tanh(x.spec)),
                           plan=self.p.exponential(self.p.tanh(x.plan)))  # fmt: skip
        return replace(x, spec=getattr(self.s, name)(x.spec), plan=getattr(self.p, name)(x.plan))

    def scale(self, x: Pair) -> Pair:
        factor = self.rng.choice((Fraction(1, 3), Fraction(-2), Fraction(7, 2)))
        return replace(x, spec=x.spec * factor, plan=x.plan * factor)

    def binary(self, x: Pair) -> Pair | None:
        y = next((y for y in self.pool[::-1] if y.layout == x.layout and y.spec.shape == x.spec.shape
                  and y is not x), x)  # fmt: skip
        name = self.rng.choice(("__add__", "__sub__", "__mul__"))
        return replace(x, spec=getattr(x.spec, name)(y.spec), plan=getattr(x.plan, name)(y.plan))

    def transpose(self, x: Pair) -> Pair | None:
        if len(x.spec.shape) != 2:
            return None
        return Pair(x.spec.T, x.plan.T, tuple((a, 1 - d) for a, d in x.layout))

    def gather(self, x: Pair) -> Pair | None:
        """Un-shard one axis."""
        if not x.layout:
            return None
        axis, dim = self.rng.choice(x.layout)
        return Pair(x.spec, self.p.all_gather(x.plan, axis, dim), tuple(e for e in x.layout if e[0] != axis))

    def shard(self, x: Pair) -> Pair | None:
        """Every rank takes its slice of a replicated dimension."""
        axis = self.rng.choice(list(self.mesh))
        for dim, n in enumerate(x.plan.shape):
            if n % self.mesh[axis] == 0 and x.axis_of(dim) is None and axis not in dict(x.layout):
                size = n // self.mesh[axis]
                sizes = tuple(size if d == dim else m for d, m in enumerate(x.plan.shape))
                start = [self.p.axis_index(axis).scale(size) if d == dim else 0 for d in range(len(sizes))]
                return Pair(x.spec, self.p.slice(x.plan, start, sizes), (*x.layout, (axis, dim)))
        return None

    def total(self, x: Pair) -> Pair | None:
        """Sum over one dimension, over ranks where it is sharded."""
        if not x.spec.shape:
            return None
        dim = self.rng.randrange(len(x.spec.shape))
        axis, plan = x.axis_of(dim), x.plan.sum(dim)
        if axis is not None:
            plan = self.p.all_reduce(plan, axis)
        kept = tuple((a, d - (d > dim)) for a, d in x.layout if d != dim)
        return Pair(x.spec.sum(dim), plan, kept)

    def linear(self, x: Pair) -> Pair | None:
        """A matrix product with a new weight: column-parallel, or row-parallel and summed over ranks."""
        if len(x.spec.shape) != 2:
            return None
        inner, used = x.axis_of(1), dict(x.layout)
        free = [a for a in self.mesh if a not in used]
        wide = self.rng.choice((2, 4))
        if inner is None:
            column = self.rng.choice([*free, None])
            size = wide * (self.mesh[column] if column else 1)
            w = self.input((x.spec.shape[1], size), ((column, 1),) if column else ())
            return Pair(x.spec @ w.spec, x.plan @ w.plan, (*x.layout, *w.layout))
        w = self.input((x.spec.shape[1], wide), ((inner, 0),))
        rest = tuple(e for e in x.layout if e[0] != inner)
        partial = x.plan @ w.plan
        rows = partial.shape[0]
        if x.axis_of(0) is None and rows % self.mesh[inner] == 0 and self.rng.random() < 0.5:
            scattered = self.p.reduce_scatter(partial, inner, 0)
            return Pair(x.spec @ w.spec, scattered, (*rest, (inner, 0)))
        return Pair(x.spec @ w.spec, self.p.all_reduce(partial, inner), rest)

    def flatten(self, x: Pair) -> Pair | None:
        """Merge both dimensions, if the minor one is whole."""
        if len(x.spec.shape) != 2 or x.axis_of(1) is not None:
            return None
        n, m = x.spec.shape
        local = x.plan.shape
        return Pair(x.spec.reshape(n * m), x.plan.reshape(local[0] * local[1]), x.layout)

    def window(self, x: Pair) -> Pair | None:
        """Pad a whole dimension, then cut a window out of it."""
        if len(x.spec.shape) != 2 or x.axis_of(1) is not None:
            return None
        n = x.spec.shape[1]
        spec, plan = (b.pad(v, (0, 1), (0, 2)) for b, v in ((self.s, x.spec), (self.p, x.plan)))
        return Pair(spec[:, : n + 1], plan[:, : n + 1], x.layout)


STEPS: list[Callable[[Generator, Pair], Pair | None]] = [
    Generator.unary, Generator.scale, Generator.binary, Generator.transpose, Generator.gather,
    Generator.shard, Generator.total, Generator.linear, Generator.flatten, Generator.window,
]  # fmt: skip


def random_plan(seed: int, steps: int = 8) -> Plan:
    """A plan of at most ``steps`` operations; the same for the same seed."""
    g = Generator(random.Random(seed))
    for _ in range(2):
        g.random_input()
    for _ in range(steps):
        g.step()
    outputs: dict[str, dict[str, Placement]] = {}
    for pair in g.pool[-3:]:
        name = f"out{len(outputs)}"
        g.s.output(name, pair.spec)
        g.p.output(name, pair.plan)
        outputs[name] = pair.placements()
    return build_plan(
        name=f"random-{seed}", mesh=g.mesh, specification=g.s.build(), classes=g.p.build(),
        inputs=g.inputs, outputs=outputs,
    )  # fmt: skip


def _type(shape: tuple[int, ...] | list[int]) -> str:
    return f"f32[{','.join(map(str, shape))}]"
