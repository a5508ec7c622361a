"""One number of an optimizer on ranks where the single device has one for each parameter: step counts.

PyTorch's optimizers count steps parameter by parameter; the optimizer of a flat chunk counts once for all in
it. No tensor of a plan can be given by several of the specification, so there these are one input: the claim
is about runs in which they are equal when a step begins, and it is checked that they are when the step ends
(ADR 0229).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from certificates.plan import placements as placed
from certificates.plan.plan import Mesh, RankClass, Relation
from certificates.plan.program import Program
from certificates.plan.types import TensorType

from .definition import Bucket
from .errors import LayoutError, StateError
from .fitting import Sample
from .lowering import RankProgram
from .renaming import holding

#: Provenance: inputs of the specification that stand for several states of the single device.
ONE_FOR = "one number for"


@dataclass(frozen=True)
class Counts:
    """``held`` are numbers of ranks by name, with those of the single device that they are.

    ``first`` has for each of these the one whose name the input keeps.
    """

    held: Mapping[str, tuple[str, ...]]
    first: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        first: dict[str, str] = {}
        for members in self.held.values():
            roots = [_root(first, m) for m in members]
            for root in roots:
                first[root] = roots[0]
        object.__setattr__(self, "first", {m: _root(first, m) for m in first})

    def names(self) -> set[str]:
        """All names of ranks that are none of the specification's, or no more."""
        return {*self.held, *self.first} - {*self.first.values()}

    def complete(self, changed: Collection[str]) -> set[str]:
        """Those of which the single-device step changes what they are."""
        return {n for n in self.names() if self.first[self.held.get(n, (n,))[0]] in changed}

    def of(self, name: str) -> list[str]:
        """The ranks' names of a number of the specification, but for its own."""
        held = [plan for plan, members in self.held.items() if self.first[members[0]] == name]
        own = [m for m, first in self.first.items() if first == name]
        return [plan for plan in dict.fromkeys((*held, *own)) if plan != name]

    def relations(
        self, name: str, mesh: Mesh, classes: Sequence[RankClass], *, left: bool
    ) -> Iterator[Relation]:
        """Which numbers of ranks are this one of the specification; with ``left``, after the step."""
        for plan in self.of(name):
            holders = holding(plan, f"is {name}", classes, left=left)
            if holders:
                yield placed.relate(name, (), {}, mesh, holders, plan=plan)

    def told(self) -> list[str]:
        """For the provenance: which input stands for which states."""
        return [
            f"{name}: {', '.join(m for m, first in self.first.items() if first == name and m != name)}"
            for name in dict.fromkeys(self.first.values())
        ]

    def joined(self, single: RankProgram) -> RankProgram:
        """The single device with one input for equal numbers; numbers of two types are a ``LayoutError``."""
        others = {m: first for m, first in self.first.items() if m != first}
        for member, first in others.items():
            if single.inputs[member] != single.inputs[first]:
                types = f"{single.inputs[member]}, and {first} is {single.inputs[first]}"
                raise LayoutError(f"is {types}: ranks keep one number for both", tensor=member)
        inputs = {name: type_ for name, type_ in single.inputs.items() if name not in others}
        drafts = tuple(replace(d, ins=tuple(others.get(v, v) for v in d.ins)) for d in single.drafts)
        outputs = {name: others.get(value, value) for name, value in single.outputs.items()}
        return replace(single, inputs=inputs, drafts=drafts, outputs=outputs)

    def left(self, specification: Program) -> Program:
        """The specification with one output for them; one that is left unlike others is a ``StateError``.

        So is one that is left alone: nothing in a step says that what an optimizer was made with is equal.
        """
        outputs = dict(specification.outputs)
        for member, first in self.first.items():
            if outputs.get(member, member) != outputs.get(first, first) or first not in outputs:
                what = "another number in it than in" if first in outputs else "it alone, and so it does"
                message = f"the single-device step leaves {what} {first}; ranks keep one number for both"
                instead = "a number for each of them on the ranks, too"
                raise StateError(message, tensor=member, instead=instead)
        others = {m for m, first in self.first.items() if m != first}
        return replace(specification, outputs={n: v for n, v in outputs.items() if n not in others})


def stood_for(provenance: Mapping[str, object]) -> dict[str, str]:
    """States of the single device that a plan has under another name, with that name."""
    told = provenance.get(ONE_FOR, ())
    lines = [str(line).partition(": ") for line in told] if isinstance(told, list | tuple) else []
    return {member: name for name, _, members in lines for member in members.split(", ")}


def counts(
    states: Mapping[str, TensorType],
    buckets: Mapping[str, Bucket],
    samples: Iterable[Sample],
    holds: Mapping[str, Sequence[str]],
) -> Counts:
    """Numbers of optimizers that ranks keep for several tensors of ``states``.

    A number of a flat bucket is declared as a bucket itself, or follows from its parameter's. ``holds`` are
    those of which is known how their parameters were cut.
    """
    numbers = {name for name, type_ in states.items() if not type_.shape}
    found = {name: tuple(members) for name, members in holds.items() if len(members) > 1}
    for sample in samples:
        for name, layout in sample.layouts.items() if sample.rank is not None else ():
            own = name in states and name not in buckets
            if name.startswith("opt.") and not layout.local and not own:
                members = dict.fromkeys(_members(name, layout.owner, buckets))
                if len(members) > 1 and members.keys() <= numbers:
                    found.setdefault(name, tuple(members))
    return Counts(found)


def _members(name: str, owner: str, buckets: Mapping[str, Bucket]) -> Iterator[str]:
    if name in buckets:
        yield from buckets[name].tensors
    elif f"params.{owner}" in buckets:
        for tensor in buckets[f"params.{owner}"].tensors:
            yield name.removesuffix(owner) + tensor.partition(".")[2]


def _root(first: Mapping[str, str], member: str) -> str:
    while first.get(member, member) != member:
        member = first[member]
    return member
