"""What a plan says: its states, its mesh, its declared ranges."""

from __future__ import annotations

from dataclasses import replace

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.plan import Mesh, Plan, states
from certificates.plan.reading import loads
from certificates.plan.writing import dumps


def test_states_are_inputs_that_are_not_declared_otherwise(mlp: Plan) -> None:
    assert list(states(mlp)) == ["params.w1", "params.w2"]
    assert list(states(replace(mlp, given=("batch.t",), constants=("hyper.lr",)))) == [
        *("batch.x", "params.w1", "params.w2")
    ]


def test_mesh_ranks_are_row_major() -> None:
    mesh = Mesh({"dp": 2, "tp": 3})
    assert [mesh.coordinates(r) for r in (0, 1, 5)] == [
        *({"dp": 0, "tp": 0}, {"dp": 0, "tp": 1}, {"dp": 1, "tp": 2}),
    ]
    assert all(mesh.rank(mesh.coordinates(r)) == r for r in range(mesh.ranks))
    assert mesh.fibres(("dp",)) == ((0, 3), (1, 4), (2, 5))
    assert mesh.fibres(("tp", "dp")) == ((0, 3, 1, 4, 2, 5),)


def test_ranges_may_be_negative() -> None:
    """Labels that are to be ignored are often -100."""
    specification, b = ProgramBuilder(), ProgramBuilder({"dp": 2})
    for builder in (specification, b):
        builder.output("y", builder.input("labels", "i64[3]") * 2)
    plan = build_plan(
        name="labels",
        mesh={"dp": 2},
        specification=specification.build(),
        classes=b.build(),
        inputs={"labels": {}},
        outputs={"y": {}},
        ranges={"labels": (-100, 9)},
    )
    assert loads(dumps(plan)) == plan
