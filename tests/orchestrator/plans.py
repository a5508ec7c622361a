"""Small pairs of programs for single questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from certificates.build import ProgramBuilder, build_plan
from certificates.plan import Plan
from certificates.relation import Placement
from orchestrator.engine import Engine, Unproved
from orchestrator.solving import Cores

Write = Callable[[ProgramBuilder], None]
Layout = Mapping[str, Mapping[str, Placement]]


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


def unproved(plan: Plan) -> list[str]:
    """Why claims have no proof, one line each."""
    engine = Engine(plan, Cores())
    engine.relate()
    out = []
    for claims in engine.claims():
        for number in claims:
            try:
                engine.prove(number)
            except Unproved as error:
                out.append(f"{engine.knowledge.facts[number].lhs}: {error}")
    return out
