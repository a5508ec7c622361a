"""Small pairs of programs for single questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Placement, Shard
from certificates.plan.plan import Plan, Relation
from orchestrator.errors import Unproved
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

#: Equal obligations of all plans of a test run are solved once: a core depends on the text alone.
CORES = Cores()
Write = Callable[[ProgramBuilder], None]
Layout = Mapping[str, Mapping[str, Placement]] | Sequence[Relation]


def pair(
    mesh: Mapping[str, int], specification: Write, plan: Write, inputs: Layout, outputs: Layout,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> Plan:  # fmt: skip
    """A plan from two functions that write the two programs."""
    spec, b = ProgramBuilder(), ProgramBuilder(mesh)
    specification(spec)
    plan(b)
    return build_plan(
        name="pair", mesh=mesh, specification=spec.build(), classes=b.build(), inputs=inputs, outputs=outputs,
        ranges=ranges or {},
    )  # fmt: skip


def unproved(plan: Plan, *, in_digits: bool = False) -> list[str]:
    """Why claims have no proof, one line each."""
    engine = Engine(plan, CORES, in_digits=in_digits)
    engine.relate()
    out = []
    for claims in engine.claims():
        for number in claims:
            try:
                engine.prove(number)
            except Unproved as error:
                out.append(f"{engine.knowledge.facts[number].lhs}: {error}")
    return out


def alone(b: ProgramBuilder) -> Plan:
    """A specification without a plan."""
    empty = ProgramBuilder({}).build()
    return build_plan(name="alone", mesh={}, specification=b.build(), classes=empty, inputs={}, outputs={})


def every_op() -> Plan:
    """The elementwise ops that random plans do not draw."""
    b = ProgramBuilder()
    x, y, n = b.input("x", "f32[5]"), b.input("y", "f32[5]"), b.input("n", "i64[5]")
    p, q = b.compare(x, y, "LT"), b.compare(n, 0, "GE")
    positive = b.exponential(x)
    results = [
        b.select(p, x, y), b.maximum(x, y), b.minimum(x, y), x / positive, b.sqrt(positive),
        b.rsqrt(positive), b.log(positive), b.logistic(x), b.cosine(x), b.abs(x), b.convert(n, "f32"),
        b.convert(p, "f32"), b.erf(x),
        b.convert(b.logical_and(p, q), "f32"), b.convert(b.logical_or(p, b.logical_not(q)), "f32"),
        b.convert(b.convert(n, "i1"), "f32"), *connectives(b), b.power(positive, y), b.reduce(x, (0,), "max"),
        b.reduce(x, (0,), "min"), b.convert(b.reduce(p, (0,), "or"), "f32"),
    ]  # fmt: skip
    for i, value in enumerate(results):
        b.output(f"y{i}", value)
    return alone(b)


def connectives(b: ProgramBuilder) -> list[Value]:
    """Of both truth values, whatever the inputs are."""
    bits = {value: b.constant(value, "i1[5]") for value in (False, True)}
    pairs = [(p, q) for p in bits.values() for q in bits.values()]
    made = [f(p, q) for p, q in pairs for f in (b.logical_and, b.logical_or)]
    return [b.convert(v, "f32") for v in [*made, *map(b.logical_not, bits.values())]]


def exchange() -> Plan:
    """all_to_all, concatenate and a transpose of three axes, which random plans do not draw."""
    mesh = {"a": 2, "b": 2}
    spec, b = ProgramBuilder(), ProgramBuilder(mesh)
    x = spec.input("x", "f32[8,6]")
    spec.output("y", spec.concatenate([x, x * 2], 1))
    local = b.input("x", "f32[4,6]")
    moved = b.all_to_all(local, "a", split_dim=1, concat_dim=0)
    b.output("y", b.concatenate([moved, moved * 2], 1))
    b.output("turned", b.transpose(b.reshape(moved, (4, 2, 3)), (1, 2, 0)))
    b.output("z", b.all_gather(b.reduce_scatter(local, "b", 0), "b", 0))
    return build_plan(name="exchange", mesh=mesh, specification=spec.build(), classes=b.build(),
                      inputs={"x": {"a": Shard(0)}}, outputs={})  # fmt: skip
