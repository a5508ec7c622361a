"""Following one element through data movement and scaling, one op at a time, at true sizes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction

from certificates.plan.affine import ZERO, Affine, Range
from certificates.proof.facts import Ref
from smtlib_emit.model import Model
from smtlib_emit.regroup import linear

from ..cells import Unfollowable, divide, unlinear, within

MOVEMENT = frozenset(
    (
        *("broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate"),
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv"),
    )
)
Step = tuple[Fraction, Ref, list[Affine]]


def moves(model: Model, ref: Ref) -> bool:
    """Whether a REF is data movement, a collective, or a multiple of its operand by a literal.

    A multiple by zero is none: it says nothing of its operand, and is the literal zero. Nor is an all-to-all
    that joins along the dimension which it splits: it has no definition in a stage.
    """
    op = model.op(ref)
    if op is None or (op.name == "all_to_all" and op.attrs["split_dim"] == op.attrs["concat_dim"]):
        return False
    factor = model.scale(ref)
    return op.name in MOVEMENT or (factor is not None and factor[1] != 0)


def step(model: Model, ref: str, index: Sequence[Affine], ranges: Mapping[str, Range]) -> Step:
    """``ref[index] = coef * source[source index]`` on the whole box;
    may raise a split or ``Unfollowable``.
    """
    op = model.ops[ref]
    ins = model.operands(ref)
    mesh = len(model.tensors.mesh_axes(ref))
    at = list(index)
    one = Fraction(1)
    factor = model.scale(ref)
    if factor is not None:
        return factor[1], ins[factor[0]], at
    match op.name:
        case "broadcast_in_dim":
            shape = model.tensors.type(ins[0]).shape
            source = [ZERO if n == 1 else at[mesh + d] for n, d in zip(shape, op.ints("dims"), strict=True)]
            return one, ins[0], at[:mesh] + source
        case "transpose":
            source = [ZERO] * len(op.type.shape)
            for d, p in enumerate(op.ints("perm")):
                source[p] = at[mesh + d]
            return one, ins[0], at[:mesh] + source
        case "slice":
            here = dict(zip(model.plan.mesh.axes, at, strict=False)) if mesh else {}
            source = [
                start.substitute(here) + f.scale(stride)
                for start, f, stride in zip(op.affines("start"), at[mesh:], op.ints("stride"), strict=True)
            ]
            return one, ins[0], at[:mesh] + source
        case "pad":
            source = [f - low for f, low in zip(at[mesh:], op.ints("low"), strict=True)]
            shape = model.tensors.type(ins[0]).shape
            if all(within(f, 0, n, ranges) for f, n in zip(source, shape, strict=True)):
                return one, ins[0], at[:mesh] + source
            return one, ins[1], at[:mesh]
        case "concatenate":
            d = mesh + op.integer("dim")
            ends = model.ends(ref)
            part = bisect_right(ends, at[d].interval(ranges)[0])
            if part == len(ins):
                raise Unfollowable(f"{ref}: index beyond the concatenation")
            divide(at[d], ends[part], ranges)
            at[d] = at[d] - (ends[part - 1] if part else 0)
            return one, ins[part], at
        case "send":
            return one, ins[0], at
        case "recv":
            there = model.source(ref, at)
            return one, family_member(model, ref, model.family(ref), there, ranges), there
        case "reshape" | "all_gather" | "all_to_all":
            return one, *_regroup(model, ref, at, ranges)
        case "all_reduce" | "reduce_scatter":
            red = model.reduced(ref, op.text("kind"))
            if op.name == "reduce_scatter":
                d = mesh + op.integer("dim")
                place = model.position(model.group(ref).axes, at)
                at[d] = place.scale(op.type.shape[op.integer("dim")]) + at[d]
            axes = list(model.plan.mesh.axes)
            return one, red, [f for i, f in enumerate(at) if i >= mesh or axes[i] not in red.axes]
        case _:
            raise Unfollowable(f"{op.name} {ref} is not data movement")


def _regroup(
    model: Model, ref: str, at: list[Affine], ranges: Mapping[str, Range]
) -> tuple[Ref, list[Affine]]:
    op = model.ops[ref]
    mesh = len(model.tensors.mesh_axes(ref))
    operand = model.operands(ref)[0]
    source = at[:mesh] + [ZERO] * len(model.tensors.type(operand).shape)
    if op.name != "reshape":
        source[mesh:] = at[mesh:]
    if op.name == "all_to_all":
        d = op.integer("split_dim")
        place = model.position(model.group(ref).axes, at)
        source[mesh + d] = place.scale(op.type.shape[d]) + at[mesh + d]
    for part in model.parts(ref):
        position = linear([at[c] for c in part.at], part.at_sizes)
        if part.arg:
            for c, form in zip(part.arg, unlinear(position, part.arg_sizes, ranges), strict=True):
                source[c] = form
    if op.name == "reshape":
        return operand, source
    return family_member(model, ref, model.family(ref), source, ranges), source


def family_member(
    model: Model, ref: str, family: Mapping[str, str], at: Sequence[Affine], ranges: Mapping[str, Range]
) -> str:
    """The operand of the one class that holds the mesh coordinates at the head of ``at``."""
    for cls in model.plan.classes:
        box = [cls.box[a] for a in model.plan.mesh.axes]
        if all(within(f, lo, hi, ranges) for f, (lo, hi) in zip(at, box, strict=False)):
            if cls.name not in family:
                raise Unfollowable(f"{ref}: class {cls.name} does not take part")
            return family[cls.name]
    raise Unfollowable(f"{ref}: no class holds the ranks that it reads")
