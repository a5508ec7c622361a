"""A pair of terms as a plan for the whole pipeline: reshapes, slices, masks, gathers, shards as ops.

The right side is the specification; the left side runs on every rank of the mesh axis `r`, its sums over `p`
sharded where possible. The letter `b` is a lookup in a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Placement, Shard, relate
from certificates.plan.plan import Mesh, Plan, RankClass

from .stages import MESH
from .terms import LETTERS, Sizes, Term, free, size_of, substitute, value_of, variables

TABLE = 3


class Writer:
    """Writes terms into one program; shards of inputs are declared when they are first read."""

    def __init__(self, sizes: Sizes, builder: ProgramBuilder, sharding: bool) -> None:
        self.sizes, self.b, self.sharding = sizes, builder, sharding
        self.inputs: dict[str, tuple[str, dict[str, Placement]]] = {}
        self.values: dict[str, Value] = {}
        self.known: dict[tuple[Term, bool], Value] = {}

    def input(self, spec: str, plan: str, shape: list[int], dtype: str, at: dict[str, Placement]) -> Value:
        if plan not in self.values:
            self.inputs[plan] = (spec, at)
            self.values[plan] = self.b.input(plan, f"{dtype}[{','.join(map(str, shape))}]")
        return self.values[plan]

    def letter(self, name: str, shard: bool) -> Value:
        shape = [size_of(k, self.sizes) for k in LETTERS[name]]
        if name == "b":
            table = self.input("b.table", "b.table", [TABLE], "f32", {})
            return self.b.gather(table, self.input("b.index", "b.index", shape, "i64", {}))
        if shard:
            return self.input(name, f"{name}.shard", [self.sizes["k"], *shape[1:]], "f32", {"r": Shard(0)})
        return self.input(name, name, shape, "f32", {})

    def spread(self, t: Term, dims: tuple[str, ...], open_: bool) -> Value:
        shape = [size_of(v[0], self.sizes) for v in dims]
        if t[0] == "#":
            return self.b.constant(value_of(t, self.sizes), f"f32[{','.join(map(str, shape))}]")
        own = sorted(free(t) - {MESH})
        value = self.value(t, open_)
        return value if tuple(own) == dims else self.b.broadcast(value, shape, [dims.index(v) for v in own])

    def value(self, t: Term, open_: bool) -> Value:
        """The tensor over the sorted free variables; `open_`: no sum over the mesh is under way."""
        key = (t, open_)
        if key not in self.known:
            self.known[key] = self._value(t, open_)
        return self.known[key]

    def _value(self, t: Term, open_: bool) -> Value:
        dims = tuple(sorted(free(t) - {MESH}))
        b = self.b

        def parts(terms: tuple[Term, ...]) -> list[Value]:
            return [self.spread(x, dims, open_) for x in terms]

        pointwise: dict[str, Callable[..., Value]] = {
            "+": Value.__add__, "*": Value.__mul__, "/": Value.__truediv__, "m": b.maximum,
        }  # fmt: skip
        match t[0]:
            case "L":
                return self._element(t, dims)
            case "#":
                return self.spread(t, dims, open_)
            case "F":
                return getattr(b, t[1])(self.value(t[2], open_))  # type: ignore[no-any-return]
            case "C":
                x, y = parts(t[1:])
                return b.compare(x, y, "LT").convert("f32")
            case "?":
                x, y, first, second = parts((*t[1][1:], *t[2:]))
                return b.select(b.compare(x, y, "LT"), first, second)
            case "S" | "M":
                return self._reduction(t, dims, open_)
            case op:
                return pointwise[op](*parts(t[1:]))

    def _reduction(self, t: Term, dims: tuple[str, ...], open_: bool) -> Value:
        kind, v, body = {"S": "add", "M": "max"}[t[0]], t[1], t[2]
        if self.sharding and open_ and v[0] == "p" and v in free(body):
            local = f"k{v[1:]}p"
            inner = (t[0], local, substitute(body, v, ("p", MESH, local)))
            return self.b.all_reduce(self.value(inner, False), "r", kind)
        whole = tuple(sorted({*dims, v}))
        return self.b.reduce(self.spread(body, whole, open_), (whole.index(v),), kind)

    def _element(self, t: Term, dims: tuple[str, ...]) -> Value:
        """The letter, reshaped, cut, masked to diagonals and permuted to these dimensions."""
        shard = any(e[0] == "p" and e[1] == MESH for e in t[2] if not isinstance(e, str))
        value, own = self.letter(t[1], shard), list[str]()
        for entry in t[2]:
            at = len(own)
            names = [v for v in variables(entry) if v != MESH]
            own += names
            if isinstance(entry, str) or MESH in entry:
                continue
            shape = list(value.shape)
            if entry[0] == "p":
                shape[at : at + 1] = [self.sizes["r"], self.sizes["k"]]
                value = value.reshape(*shape)
            else:
                start, n = (self.sizes["u"], self.sizes["v"]) if entry[1] else (0, self.sizes["u"])
                key: list[Any] = [slice(None)] * len(shape)
                key[at] = slice(start, start + n)
                value = value[tuple(key)]
        for v in dims:
            while own.count(v) > 1:
                value = self._diagonal(value, own.index(v), own.index(v, own.index(v) + 1))
                own.pop(own.index(v, own.index(v) + 1))
        return value.transpose(*(own.index(v) for v in dims)) if tuple(own) != dims else value

    def _diagonal(self, value: Value, first: int, second: int) -> Value:
        shape = f"i64[{','.join(map(str, value.shape))}]"
        same = self.b.compare(self.b.iota(shape, first), self.b.iota(shape, second), "EQ")
        return self.b.select(same, value, self.b.constant(0, value.type)).sum(second)


def plan_of(left: Term, right: Term, sizes: Sizes) -> Plan:
    """The plan whose one output is claimed to be replicated."""
    mesh = {"r": sizes["r"]}
    dims = tuple(sorted(free(left) | free(right)))
    spec = Writer(sizes, ProgramBuilder(), False)
    ranks = Writer(sizes, ProgramBuilder(mesh), True)
    for writer, t in ((spec, right), (ranks, left)):
        writer.b.output("y", writer.spread(t, dims, True))
    for name, (source, _) in ranks.inputs.items():
        kind = LETTERS.get(source, "i")
        if name == "b.table":
            spec.input(source, source, [TABLE], "f32", {})
        else:
            dtype = "i64" if source == "b.index" else "f32"
            spec.input(source, source, [size_of(k, sizes) for k in kind], dtype, {})
    specification, program = spec.b.build(), ranks.b.build()
    ranked = (RankClass("c0", {"r": (0, sizes["r"])}, program),)
    relations = []
    for name, (source, placements) in ranks.inputs.items():
        shape = specification.inputs[source].shape
        if name == source:
            relations.append(relate(source, shape, placements, Mesh(mesh), ranked))
            continue
        alias = replace(program, inputs={source: program.inputs[name]})
        found = relate(source, shape, placements, Mesh(mesh), (replace(ranked[0], program=alias),))
        relations.append(replace(found, plan=name))
    return build_plan(
        name="fuzz", mesh=mesh, specification=specification, classes=program, inputs=relations,
        outputs={"y": {}}, ranges={"b.index": (0, TABLE)} if "b.index" in specification.inputs else None,
    )  # fmt: skip
