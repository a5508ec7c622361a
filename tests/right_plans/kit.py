"""What the right plans share: meshes, placements and programs that differ by rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from certificates.authoring.build import ProgramBuilder, build_plan, full_box
from certificates.plan.placements import Placement, Replicate, Shard, relate
from certificates.plan.plan import Mesh, Plan, RankClass, Relation
from certificates.plan.program import Program
from orchestrator.evaluating import interpreter, scatter

from ..orchestrator.plans import Layout, Write

#: The right plan, or the wrong one.
Twins = Callable[[bool], Plan]
TP, GRID = {"tp": 2}, {"dp": 2, "tp": 2}
ROWS, COLUMNS, WHOLE = {"tp": Shard(0)}, {"tp": Shard(1)}, {"tp": Replicate()}


def by_rank(
    specification: Write, write: Callable[[ProgramBuilder, int], None], inputs: Layout, outputs: Layout
) -> Plan:
    """The two ranks of ``tp`` run programs of their own."""
    spec, classes = ProgramBuilder(), {}
    specification(spec)
    for rank in range(2):
        b = ProgramBuilder(TP, box={"tp": (rank, rank + 1)})
        write(b, rank)
        classes[f"c{rank}"] = ({"tp": (rank, rank + 1)}, b.build())
    return build_plan(
        name="by-rank", mesh=TP, specification=spec.build(), classes=classes, inputs=inputs, outputs=outputs
    )


def placed(
    name: str, shape: Sequence[int], placements: Mapping[str, Placement], mesh: Mapping[str, int]
) -> Relation:
    """A tensor by its placements, where all ranks run one program."""
    classes = [RankClass("c0", full_box(mesh), Program({}, (), {}))]
    return relate(name, shape, placements, Mesh(dict(mesh)), classes)


def differs(plan: Plan) -> bool:
    """Whether outputs differ on random numbers, by the interpreter."""
    rng = np.random.default_rng(1)
    inputs = scatter.random_inputs(plan, rng)
    spec = interpreter.run_specification(plan, inputs)
    ranks = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
    return bool(scatter.compare_outputs(plan, spec, ranks, 1e-9))
