"""Plans written by hand that several folders test with."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Partial, Replicate, Shard
from certificates.plan.plan import Plan

#: A shell has what it runs in the background ignore Ctrl-C, and commands that tests start with it.
signal.signal(signal.SIGINT, signal.default_int_handler)
MESH = {"dp": 2, "tp": 2}


#: Of a test with more slow cases every third is run, and of all that is left so every third.
PARTS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = [*map(str, range(PARTS * PARTS)), "all"]
    parser.addoption("--part", choices=choices, default="0", help="which part of the slow tests, or all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A part of the slow tests runs: all of them take longer than CI has."""
    slow: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(item.nodeid.partition("[")[0], []).append(item)
    if config.getoption("--part") == "all" or sum(map(len, slow.values())) <= PARTS:
        return
    tests, cases = divmod(int(config.getoption("--part")), PARTS)
    kept = [c for found in slow.values() for c in (found[cases::PARTS] if len(found) > PARTS else found)]
    runs = set(map(id, kept[tests::PARTS]))
    dropped = [case for found in slow.values() for case in found if id(case) not in runs]
    gone = set(map(id, dropped))
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if id(item) not in gone]


def pytest_collection_finish() -> None:
    """A step in a file of tests has ``pytest.mark`` in reach, and who names ``sys`` what imports modules.

    All that is collected hung on these: each look at what a step can change went through a million values.
    """
    pytest.mark._config = None
    sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_pytest")]


def mlp_step(b: ProgramBuilder, rows: int, hidden: int, total_rows: int, *, sharded: bool) -> None:
    """One SGD step of ``mean((tanh(x w1) w2 - t)^2)``; sharded: batch rows over dp, hidden units over tp."""
    x, t = b.input("batch.x", f"f32[{rows},4]"), b.input("batch.t", f"f32[{rows},3]")
    w1, w2 = b.input("params.w1", f"f32[4,{hidden}]"), b.input("params.w2", f"f32[{hidden},3]")
    lr = b.input("hyper.lr", "f32[]")

    def over(axis: str, value: Value) -> Value:
        return b.all_reduce(value, axis) if sharded else value

    h = b.tanh(x @ w1)
    error = over("tp", h @ w2) - t
    b.output("loss", over("dp", (error * error).sum()) / (total_rows * 3))
    grad_y = error * 2 / (total_rows * 3)
    grad_h = (grad_y @ w2.T) * (1 - h * h)
    for name, weight, grad in (("params.w1", w1, x.T @ grad_h), ("params.w2", w2, h.T @ grad_y)):
        b.output(f"grads.{name}", grad)
        b.output(name, weight - lr.like(weight) * over("dp", grad))


def build_mlp() -> Plan:
    """The step on one device, and on dp 2 x tp 2."""
    specification, plan = ProgramBuilder(), ProgramBuilder(MESH)
    mlp_step(specification, 6, 8, 6, sharded=False)
    mlp_step(plan, 3, 4, 6, sharded=True)
    weights = {"params.w1": {"tp": Shard(1)}, "params.w2": {"tp": Shard(0)}}
    grads = {f"grads.{n}": {**p, "dp": Partial()} for n, p in weights.items()}
    return build_plan(
        name="mlp-tp2-dp2",
        mesh=MESH,
        specification=specification.build(),
        classes=plan.build(),
        inputs={"batch.x": {"dp": Shard(0)}, "batch.t": {"dp": Shard(0)}, "hyper.lr": {}, **weights},
        outputs={"loss": {"dp": Replicate()}, **weights, **grads},
        given=("batch.t", "batch.x", "hyper.lr"),
    )


def build_uneven() -> Plan:
    """Three ranks hold 4, 4 and 2 of 10 rows (padded to 4 for the all-gather): two rank classes."""
    mesh = {"dp": 3}
    specification = ProgramBuilder()
    specification.output("y", specification.input("w", "f32[10,2]") * 3)
    classes = {}
    for label, box, rows in (("full", (0, 2), 4), ("last", (2, 3), 2)):
        b = ProgramBuilder(mesh, box={"dp": box})
        w = b.input("w", f"f32[{rows},2]")
        whole = b.all_gather(b.pad(w, (0, 0), (4 - rows, 0)), "dp")[:10]
        start = b.axis_index("dp").scale(4)
        b.output("y", b.slice(whole, [start, 0], [rows, 2]) * 3)
        classes[label] = ({"dp": box}, b.build())
    shard = {"dp": Shard(0)}
    return build_plan(
        name="uneven-dp3",
        mesh=mesh,
        specification=specification.build(),
        classes=classes,
        inputs={"w": shard},
        outputs={"y": shard},
    )


def build_integers() -> Plan:
    """Vocabulary-parallel lookup: a masked gather on each rank, then a sum."""
    mesh = {"tp": 2}
    specification = ProgramBuilder()
    table = specification.input("params.e", "f32[10,3]")
    tokens = specification.input("batch.tokens", "i64[5]")
    specification.output("y", specification.gather(table, tokens))
    b = ProgramBuilder(mesh)
    table, tokens = b.input("params.e", "f32[5,3]"), b.input("batch.tokens", "i64[5]")
    first = b.constant(b.axis_index("tp").scale(5), "i64[5]")
    local = tokens - first
    inside = b.logical_and(b.compare(local, 0, "GE"), b.compare(local, 5, "LT"))
    rows = b.gather(table, b.select(inside, local, b.constant(0, "i64[5]")))
    kept = b.select(b.broadcast(inside, (5, 3), (0,)), rows, b.constant(0, "f32[5,3]"))
    b.output("y", b.all_reduce(kept, "tp"))
    return build_plan(
        name="lookup-tp2",
        mesh=mesh,
        specification=specification.build(),
        classes=b.build(),
        inputs={"params.e": {"tp": Shard(0)}, "batch.tokens": {}},
        outputs={"y": {}},
        ranges={"batch.tokens": (0, 10)},
        provenance={"written by": "hand"},
    )


BUILDERS: dict[str, Callable[[], Plan]] = {
    "mlp": build_mlp,
    "uneven": build_uneven,
    "integers": build_integers,
}


@pytest.fixture(scope="session")
def mlp() -> Plan:
    return build_mlp()


@pytest.fixture(scope="session")
def uneven() -> Plan:
    return build_uneven()


@pytest.fixture(params=sorted(BUILDERS))
def any_plan(request: pytest.FixtureRequest) -> Plan:
    """Each hand-written plan in turn."""
    return BUILDERS[request.param]()


@pytest.fixture(autouse=True)
def reports_without_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emission in this process has its reports from the checker in this process: the same bytes, sooner.

    ``tests/orchestrator/test_children.py`` compares them with the child's.
    """
    from contextlib import nullcontext
    from functools import partial

    # A step that asks `sys.modules` for what a trace alone has is refused; some stand beside this file.
    if "orchestrator.early" in vars(sys)["modules"]:
        monkeypatch.setattr("orchestrator.early.write_reports", reports_here)
        monkeypatch.setattr("orchestrator.early.reporting", lambda of: nullcontext(partial(reports_here, of)))


def reports_here(bundle: Path) -> dict[str, bytes]:
    from checker.reporting import reports

    return {name: text.encode() for name, text in reports(bundle)[1].items()}
