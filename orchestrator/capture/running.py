"""Does a captured plan compute what the user's code computes? Real processes against the interpreter.

The single-device step and every rank run for several consecutive steps on random numbers: the states that a
step leaves are those that the next one reads, batch and learning rate are given anew. The interpreter runs
the plan's programs over the same steps. Every output of the plan file is compared, and every state that the
plan reads and does not write must have kept its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from certificates.plan.functions import inline
from certificates.plan.plan import Plan
from certificates.plan.program import Program

from ..errors import EvaluationError
from ..evaluating.arrays import Array, random_array
from ..evaluating.interpreter import run_plan, run_specification, scatter_inputs
from .counts import stood_for
from .definition import Definition
from .errors import CaptureError, DisagreementError, RunError
from .realstep import SHIMS
from .workers import Workers

#: Ranks that are started as processes, and elements of inputs and results over all of them.
MAX_RANKS, MAX_ELEMENTS = 16, 1 << 25
#: Relative to the largest element of a tensor. Code that runs in float64 may convert to float32 in between.
TOLERANCES = {"float64": 1e-5, "float32": 2e-3, "16-bit floats": 5e-2}
#: Rounding of a run that is float64 everywhere stays below this.
_EXACT = 1e-8

#: Inputs that every step is given anew.
_GIVEN = ("batch.", "hyper.")

Inputs = dict[str, Array]


@dataclass(frozen=True)
class Comparison:
    """What was compared; ``largest`` is the largest difference relative to its tensor's largest element."""

    steps: int
    ranks: int
    seed: int
    numbers: int
    precision: str
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.steps} consecutive steps, single device and {self.ranks} gloo ranks, seed {self.seed}: "
            f"{self.numbers} numbers in {self.precision}, largest difference {self.largest:.1e}"
        )


def affordable(plan: Plan) -> None:
    """Refuse what is too large to run in processes on this machine."""
    if plan.mesh.ranks > MAX_RANKS:
        raise RunError(f"{plan.mesh.ranks} ranks are more than the {MAX_RANKS} that are run as processes")
    programs = [plan.class_of(plan.mesh.coordinates(r)).program for r in range(plan.mesh.ranks)]
    total = sum(map(_elements, (plan.specification, *programs)))
    if total > MAX_ELEMENTS:
        raise RunError(
            f"its tensors have {total} elements over all ranks, more than {MAX_ELEMENTS}; use smaller sizes"
        )


def _elements(program: Program) -> int:
    results = (op.type for op in program.ops if op.name not in ("constant", "iota"))
    return sum(t.size for t in (*program.inputs.values(), *results))


def run(plan: Plan, definition: Definition, *, steps: int = 3, seed: int = 0) -> Comparison:
    """Run the definition of a captured plan and compare.

    It computes in float64; code that fails then, or rounds to 16 bits, is run as it is, with the tolerance of
    its types. A :class:`DisagreementError` names output, rank, step and numbers; a :class:`RunError` says why
    nothing could be compared.
    """
    plan = inline(plan)
    affordable(plan)
    try:
        with Workers(plan.mesh.ranks, lambda _: definition) as workers:
            return compare(plan, workers, None, steps=steps, seed=seed)
    except DisagreementError:
        if _precision(plan, wide=False) == "float32":
            raise
    except RunError:
        pass  # most often types that do not match; what else fails then fails again
    with Workers(plan.mesh.ranks, lambda _: definition) as workers:
        return compare(plan, workers, None, steps=steps, seed=seed, wide=False)


def compare(
    plan: Plan, workers: Workers, what: object, *, steps: int, seed: int, wide: bool = True
) -> Comparison:
    """Run ``what`` (as the workers load it) and compare it with a plan without calls."""
    names = list(range(plan.mesh.ranks))
    times = plan.mesh.points // plan.mesh.ranks  # a rank has one tensor of a name for all its runs
    rng = np.random.default_rng(seed)
    workers.open(what, wide, seed)
    fresh = _given(plan, rng)
    states = workers.ask("warm_up", {None: fresh})[None]
    inputs = _initial(plan, states, rng) | fresh
    per_rank = scatter_inputs(plan, inputs, rng)[: len(names)]
    held = workers.ask("warm_up", {r: _without_states(per_rank[r]) for r in names})
    per_rank = scatter_inputs(plan, inputs, rng, [held[r] for r in names] * times)[: len(names)]
    everywhere: dict[int | None, Inputs] = {None: inputs, **dict(zip(names, per_rank, strict=True))}
    workers.ask("set", everywhere)
    judge = _Judge(plan, _precision(plan, wide))
    for step in range(steps):
        if step:
            fresh = _given(plan, rng)
            inputs = inputs | fresh
            scattered = scatter_inputs(plan, inputs, rng)[: len(names)]
            chosen = {r.plan for r in plan.inputs if r.spec in fresh}
            per_rank = [
                old | {n: v for n, v in new.items() if n in chosen}
                for old, new in zip(per_rank, scattered, strict=True)
            ]
            everywhere = {None: inputs, **dict(zip(names, per_rank, strict=True))}
        real = workers.ask("step", {r: _without_states(i) for r, i in everywhere.items()})
        try:
            outputs = [run_specification(plan, inputs), *run_plan(plan, per_rank * times)]
        except EvaluationError as error:
            raise RunError(f"the interpreter cannot run the plan: {error}") from error
        for rank, output in zip((None, *names * times), outputs, strict=True):
            try:
                judge.check(step, rank, everywhere[rank] | output, real[rank], set(output))
            except CaptureError as error:
                raise (error.at_single() if rank is None else error) from None
        inputs, *per_rank = [
            i | {n: v for n, v in o.items() if n in i}
            for i, o in zip((inputs, *per_rank), outputs[: 1 + len(names)], strict=True)
        ]
    return Comparison(steps, len(names), seed, judge.numbers, judge.label, judge.largest)


def with_run(plan: Plan, comparison: Comparison) -> Plan:
    """The plan that says in its provenance what was compared."""
    added = {"run": str(comparison), "run_shims": list(SHIMS)}
    return replace(plan, provenance={**plan.provenance, **added})


def _without_states(inputs: Mapping[str, Array]) -> Inputs:
    return {n: v for n, v in inputs.items() if n.startswith(_GIVEN)}


def _precision(plan: Plan, wide: bool) -> str:
    if wide:
        return "float64"
    programs = (plan.specification, *(c.program for c in plan.classes))
    types = {t.dtype for p in programs for t in p.types().values()}
    return "16-bit floats" if types & {"bf16", "f16"} else "float32"


def _given(plan: Plan, rng: np.random.Generator) -> Inputs:
    """Random batch and small positive learning rates."""
    out = {}
    for name, type_ in plan.specification.inputs.items():
        if name.startswith("batch."):
            out[name] = random_array(type_, rng, plan.ranges.get(name, (0, 2)))
        elif name.startswith("hyper."):
            out[name] = np.asarray(rng.uniform(1e-3, 2e-2, type_.shape))
    return out


def _initial(plan: Plan, states: Mapping[str, Array], rng: np.random.Generator) -> Inputs:
    """The states that a real step left: only such satisfy what the code takes for granted of them."""
    out = {}
    for name, type_ in plan.specification.inputs.items():
        kind = name.partition(".")[0]
        if name in states:
            out[name] = states[name]
            if states[name].shape != type_.shape:
                raise DisagreementError(
                    f"has shape {list(states[name].shape)}, in the plan {list(type_.shape)}", tensor=name
                )
            if type_.sort == "Bool" or type_.sort == "Int":
                continue
            out[name] = np.asarray(states[name], dtype=np.float64)
        elif kind in ("params", "opt", "buffers", "grads"):
            raise DisagreementError("is a state of the plan and none of the single device", tensor=name)
        elif kind not in ("batch", "hyper"):
            out[name] = random_array(type_, rng)
    return out


class _Judge:
    """Compares the numbers of one rank after one step, and counts."""

    def __init__(self, plan: Plan, precision: str) -> None:
        self._plan, self.precision = plan, precision
        self._tolerance = TOLERANCES[precision]
        self.numbers, self.largest = 0, 0.0
        self._stood_for = stood_for(plan.provenance)

    @property
    def label(self) -> str:
        mixed = self.precision == "float64" and self.largest > _EXACT
        return "float64 and float32" if mixed else self.precision

    def check(
        self,
        step: int,
        rank: int | None,
        want: Mapping[str, Array],
        real: Mapping[str, Any],
        outputs: set[str],
    ) -> None:
        """``want`` has all inputs and outputs of the plan; what is no output must be as it was."""
        if rank is None:
            want = {**want, **{m: want[name] for m, name in self._stood_for.items()}}
        missing = sorted(outputs - set(real))
        if missing:
            raise DisagreementError(
                "is an output of the plan; the real step has none", tensor=missing[0], rank=rank
            )
        others = set(real) - set(want)  # of some, this rank owns no element
        extra = sorted(n for n in others if not n.startswith("grads.") and np.asarray(real[n]).size)
        if extra:
            raise DisagreementError("is left by the real step; the plan has none", tensor=extra[0], rank=rank)
        for name in sorted(set(real) & set(want)):
            self._compare(step, rank, name, want[name], np.asarray(real[name]))

    def _compare(self, step: int, rank: int | None, name: str, want: Array, real: Array) -> None:
        if want.ndim != real.ndim or any(n > m for n, m in zip(real.shape, want.shape, strict=True)):
            shapes = f"{list(real.shape)}, in the plan {list(want.shape)}"
            raise DisagreementError(f"has shape {shapes} after step {step + 1}", tensor=name, rank=rank)
        want = want[tuple(slice(0, n) for n in real.shape)]
        self.numbers += real.size
        if not real.size:
            return
        a, b = np.asarray(real, dtype=np.float64), np.asarray(want, dtype=np.float64)
        if (np.isnan(a) & np.isnan(b)).any():
            raise RunError(f"is not a number after step {step + 1}", tensor=name, rank=rank)
        with np.errstate(all="ignore"):
            scale = max(1.0, float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))))
            distance = np.nan_to_num(np.where(a == b, 0.0, np.abs(a - b)) / scale, nan=np.inf)
        worst = np.unravel_index(int(np.argmax(distance)), distance.shape)
        self.largest = max(self.largest, float(distance[worst]))
        if distance[worst] > self._tolerance:
            at = [int(i) for i in worst]
            count = int(np.count_nonzero(distance > self._tolerance))
            raise DisagreementError(
                f"{name}{at} is {float(a[worst])!r} in the real run and {float(b[worst])!r} in the plan "
                f"after step {step + 1} ({count} of {real.size} elements differ){self._made(rank, name)}",
                tensor=name,
                rank=rank,
            )

    def _made(self, rank: int | None, name: str) -> str:
        """Where the plan's value is made."""
        plan = self._plan
        program = plan.specification if rank is None else plan.class_of(plan.mesh.coordinates(rank)).program
        value = program.outputs.get(name)
        op = next((op for op in program.ops if op.out == value), None)
        if op is None or op.loc is None:
            return ""
        return f"; the plan makes it at {plan.sources[op.loc.source]}:{op.loc.line}"
