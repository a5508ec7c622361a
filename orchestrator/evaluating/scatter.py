"""Relations on numbers: rank inputs made from specification inputs, rank outputs compared with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from certificates.plan.plan import Coordinates, Piece, Plan, Relation

from ..errors import EvaluationError
from .arrays import FOLD, NUMPY, Array, affordable, flat_positions, random_array


@dataclass(frozen=True)
class Mismatch:
    """The worst element of one piece of a claimed output relation that does not hold on these numbers.

    ``ranks`` is one rank, or all ranks of a fibre for a partial value; ``count`` elements differ.
    """

    spec: str
    plan: str
    cls: str
    ranks: tuple[int, ...]
    plan_index: tuple[int, ...]
    spec_index: tuple[int, ...]
    got: float
    want: float
    count: int

    def __str__(self) -> str:
        where = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {list(self.ranks)} together"
        return (
            f"{self.plan}{list(self.plan_index)} on {where} ({self.cls}) is {self.got!r}, "
            f"{self.spec}{list(self.spec_index)} wants {self.want!r}; {self.count} elements differ"
        )


def random_inputs(plan: Plan, rng: np.random.Generator) -> dict[str, Array]:
    """Random inputs of the specification: integers within their declared ranges; second moments, step counts
    and hyperparameters (by the naming convention of ``docs/format.md``) positive."""
    out = {}
    affordable(sum(t.size for t in plan.specification.inputs.values()), "the specification's input")
    for name, type_ in plan.specification.inputs.items():
        value = random_array(type_, rng, plan.ranges.get(name, (0, 2)))
        if name.startswith("opt.step"):
            value = np.asarray(rng.integers(1, 5, size=type_.shape)).astype(NUMPY[type_.sort])
        elif name.startswith(("opt.exp_avg_sq", "hyper.")) and type_.sort == "Real":
            value = np.abs(value)
        out[name] = value
    return out


def scatter_inputs(
    plan: Plan,
    spec_inputs: Mapping[str, Array],
    rng: np.random.Generator,
    start: Sequence[Mapping[str, Array]] | None = None,
) -> list[dict[str, Array]]:
    """Inputs of every point that satisfy the input relation; what no piece covers is random junk.

    ``start`` has other values for what no piece covers, by rank and name, where the shape is right.

    A partial input gets random summands that add up (or candidates whose maximum or minimum is right). Raises
    :class:`EvaluationError` when relations contradict each other on these numbers.
    """
    out: list[dict[str, Array]] = []
    programs = [plan.class_of(plan.mesh.coordinates(r)).program for r in range(plan.mesh.points)]
    affordable(sum(t.size for p in programs for t in p.inputs.values()), "the input of all ranks")
    covered: list[dict[str, Array]] = []
    bounds = {r.plan: plan.ranges[r.spec] for r in plan.inputs if r.spec in plan.ranges}
    for program, held in zip(programs, start or [{}] * len(programs), strict=True):
        inputs = program.inputs
        out.append({n: random_array(t, rng, bounds.get(n, (0, 2))) for n, t in inputs.items()})
        for name, type_ in inputs.items():
            if name in held and held[name].shape == type_.shape:
                out[-1][name] = np.array(held[name], dtype=NUMPY[type_.sort])
        covered.append({n: np.zeros(t.size, dtype=np.bool_) for n, t in inputs.items()})
    for relation in plan.inputs:
        source = spec_inputs[relation.spec]
        for ranks, piece in _instances(plan, relation):
            at = plan.mesh.coordinates(ranks[0])
            values = _wanted(relation, piece, source, at)
            shares = [values]
            if relation.reduce is not None:
                shares = _shares(relation.reduce[0], values, len(ranks), rng)
            for rank, share in zip(ranks, shares, strict=True):
                local, seen = out[rank][relation.plan], covered[rank][relation.plan]
                where = flat_positions(piece.plan, local.shape, piece.sizes, at)
                flat = local.reshape(-1)
                before = flat[where]
                clash = seen[where] & ((before != share) | (relation.reduce is not None))
                flat[where] = share
                if clash.any() or not np.array_equal(flat[where], share, equal_nan=flat.dtype.kind == "f"):
                    what = f"{relation.plan} of rank {rank}"
                    raise EvaluationError(f"input relations contradict each other on {what}")
                seen[where] = True
    return _once(plan, out)


def _once(plan: Plan, inputs: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """A rank has one tensor of each name for all its runs: that of the first run which has it."""
    first: dict[tuple[int, str], Array] = {}
    for point, held in enumerate(inputs if plan.mesh.time else ()):
        rank = plan.mesh.rank(plan.mesh.coordinates(point))
        held.update({name: first.setdefault((rank, name), array) for name, array in held.items()})
    return inputs


def compare_outputs(
    plan: Plan,
    spec_outputs: Mapping[str, Array],
    rank_outputs: Sequence[Mapping[str, Array]],
    tolerance: float = 1e-9,
) -> list[Mismatch]:
    """Every claimed output relation, element by element; an empty list means that all of them hold.

    Floats differ when they are further apart than ``tolerance * max(1, |wanted|)`` or when one is a NaN;
    integers and booleans differ when they are not equal.
    """
    found = []
    for relation in plan.outputs:
        source = spec_outputs[relation.spec]
        for ranks, piece in _instances(plan, relation):
            at = plan.mesh.coordinates(ranks[0])
            want = _wanted(relation, piece, source, at)
            shape = rank_outputs[ranks[0]][relation.plan].shape
            where = flat_positions(piece.plan, shape, piece.sizes, at)
            parts = [rank_outputs[r][relation.plan].reshape(-1)[where] for r in ranks]
            got = (
                parts[0]
                if relation.reduce is None
                else FOLD[relation.reduce[0]].reduce(np.stack(parts), axis=0)
            )
            wrong = _differs(got, want, tolerance)
            if not wrong.any():
                continue
            with np.errstate(all="ignore"):
                distance = np.abs(np.subtract(got, want, dtype=np.float64))
            # A NaN distance is the worst of all; elements within the tolerance do not compete.
            distance = np.where(wrong, np.nan_to_num(distance, nan=np.inf), -1.0)
            worst = np.unravel_index(int(np.argmax(distance)), distance.shape) if distance.shape else ()
            digits = {f"z{i}": int(z) for i, z in enumerate(worst)} | at
            found.append(
                Mismatch(
                    relation.spec,
                    relation.plan,
                    piece.cls,
                    ranks,
                    tuple(a.evaluate(digits) for a in piece.plan),
                    tuple(a.evaluate(digits) for a in piece.spec),
                    float(got[worst]),
                    float(want[worst]),
                    int(np.count_nonzero(wrong)),
                )
            )
    return found


def _differs(got: Array, want: Array, tolerance: float) -> Array:
    if got.dtype.kind != "f":
        return np.asarray(got != want)
    with np.errstate(all="ignore"):
        near = np.abs(got - want) <= tolerance * np.maximum(1.0, np.abs(want))
    return np.asarray(~(near & np.isfinite(want)) & (got != want))


def _wanted(relation: Relation, piece: Piece, source: Array, at: Coordinates) -> Array:
    """``coef * spec[spec(z, m)]`` at every ``z``."""
    values = source.reshape(-1)[flat_positions(piece.spec, source.shape, piece.sizes, at)]
    return values if relation.coef == 1 else values * float(relation.coef)


def _instances(plan: Plan, relation: Relation) -> list[tuple[tuple[int, ...], Piece]]:
    """Where each piece speaks: one rank at a time, or for partial values one fibre of the reduced axes."""
    mesh = plan.mesh
    at = [mesh.coordinates(r) for r in range(mesh.points)]
    names = [plan.class_of(a).name for a in at]
    if relation.reduce is None:
        return [((r,), p) for p in relation.pieces for r in range(mesh.points) if names[r] == p.cls]
    out = []
    seen: set[object] = set()
    fibres = mesh.fibres(relation.reduce[1])
    for piece in relation.pieces:
        for ranks in fibres:
            # Every class of the fibre has this piece (check_relation); the fibre is counted once.
            key = (piece.sizes, piece.plan, piece.spec, ranks)
            if key not in seen and any(names[r] == piece.cls for r in ranks):
                seen.add(key)
                out.append((ranks, piece))
    return out


def _shares(kind: str, total: Array, count: int, rng: np.random.Generator) -> list[Array]:
    """Random arrays of which ``kind`` over all is ``total``."""
    if kind == "add":
        if total.dtype.kind == "f":
            shares = [np.asarray(rng.standard_normal(total.shape)) for _ in range(count - 1)]
        else:
            shares = [np.asarray(rng.integers(-9, 10, size=total.shape)) for _ in range(count - 1)]
        return [*shares, np.asarray(total - sum(shares, np.zeros_like(total)))]
    away = -1 if kind == "max" else 1
    winner = rng.integers(0, count, size=total.shape)
    others = [total + away * rng.integers(0, 5, size=total.shape) for _ in range(count)]
    return [np.where(winner == i, total, other) for i, other in enumerate(others)]
