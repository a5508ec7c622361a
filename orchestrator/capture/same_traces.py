"""Two traces of one rank in two processes: whatever of them reaches a plan has to be alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from .builder import Frame
from .errors import CaptureError, StateError
from .fitting import Sample
from .layouts import Layout
from .steps import by_use, described, first_unlike, one_and_the_same

_ALIKE = (
    "sorted(names) for the order of a set; random numbers with a seed, or as an entry of the batch; nothing "
    "that hash() of a text decides"
)
_JOB = "in a job every rank is one"


def other_trace(here: Sample, there: Sample) -> CaptureError | None:
    """The first thing that another process has otherwise; a program that one of them lacks is left out."""
    problems = itertools.chain(_layouts(here, there), _programs(here, there), _facts(here, there))
    problem = next(problems, None)
    return None if problem is None or here.rank is None else problem.at_rank(here.rank)


def _refused(said: str, tensor: str | None = None, frame: Frame | None = None) -> StateError:
    return StateError(f"{said}: {_JOB}", tensor=tensor, frame=frame, instead=_ALIKE)


def _layouts(here: Sample, there: Sample) -> Iterator[StateError]:
    names = {*here.layouts, *there.layouts}
    for name in sorted(names, key=lambda n: (not n.startswith("params."), n)):  # others follow from these
        one, other = here.layouts.get(name), there.layouts.get(name)
        if _nowhere(one) != _nowhere(other):
            cut = next((x.cut for x in (one, other) if x is not None and x.cut is not None), None)
            said = "in one process it holds other elements, or lies otherwise, than in another one"
            yield _refused(said, name, None if cut is None else cut.frame)


def _nowhere(layout: Layout | None) -> Layout | None:
    """A layout without the user's line."""
    if layout is None or layout.cut is None:
        return layout
    return replace(layout, cut=replace(layout.cut, frame=None))


def _programs(here: Sample, there: Sample) -> Iterator[StateError]:
    a, b = here.program, there.program
    if a is None or b is None:
        return
    if one_and_the_same(by_use(a), by_use(b)):
        return
    one, other = first_unlike(a, b)
    words = [described(draft) if draft else "nothing more" for draft in (one, other)]
    said = f"{words[0]} where another one runs {words[1]}"
    if words[0] == words[1]:
        said = f"{words[0]} with other tensors than another one"
    yield _refused(f"one process runs {said}", frame=one.frame if one else None)


def _facts(here: Sample, there: Sample) -> Iterator[StateError]:
    """What is no tensor's layout and no op."""
    both = here, there
    for name in sorted({*here.rates, *there.rates}):
        rates = [s.rates.get(name, math.nan) for s in both]
        if repr(rates[0]) != repr(rates[1]):
            yield _refused(f"one process begins with {rates[0]:g}, another one with {rates[1]:g}", name)
    for what, one, other in (
        ("gives another range to an integer buffer", here.ranges, there.ranges),
        ("begins with zeros in other buffers", here.zeros, there.zeros),
        ("makes other groups", *map(_names, both)),
        ("builds DistributedDataParallel otherwise", *map(_agreed, both)),
        ("calls other collectives with a root", *([replace(r, frame=None) for r in s.roots] for s in both)),
        ("calls another number of collectives", *([replace(c, frame=None) for c in s.called] for s in both)),
        ("takes other things for granted", here.assumed, there.assumed),
        ("needs other replacements", here.shims, there.shims),
        ("declares another step: mesh, batch, layouts or buckets", here.declared, there.declared),
    ):  # fmt: skip
        if one != other:
            yield _refused(f"another process {what}")


def _names(sample: Sample) -> Mapping[object, str]:
    return {group: name for group, (name, _) in sample.communicators.items()}


def _agreed(sample: Sample) -> Mapping[object, object]:
    return {group: [said[:-1] for said in all_said] for group, all_said in sample.agreed.items()}
