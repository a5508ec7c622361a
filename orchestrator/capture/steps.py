"""Two consecutive steps of the user's, nothing forced in between, that have to be one program.

The first steps make what is made lazily (optimizer state, FSDP's and DDP's buffers); they are dropped. Then a
step is recorded with the states before and after it, and the next one likewise: what one leaves, the other
reads. A counter in Python, a cache that is filled or a schedule makes two programs, and is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from certificates.plan.ops import COLLECTIVES, MESSAGES

from .amounts import Unrecorded
from .bookkeeping import BOOK
from .builder import Draft, Frame, renamed
from .constants import Constants
from .counters import Place, counted
from .errors import CaptureError, DefinitionError, StateError, gathered
from .holders import standing_in
from .layouts import local_tensor
from .lowering import RankProgram
from .recorder import Node, Recorder, TensorRef, recording, reference
from .sharing import sharing
from .states import Snapshot, unsettled
from .unrecorded import real_writes, watching

#: Steps that may pass before the states of two consecutive ones are the same.
WARM_UPS = 5
#: Recorded calls whose arguments are numbers of works.
_ABOUT_WORKS = ("dist.wait", "dist.then", "dist.then_end")
_MEETS = COLLECTIVES | MESSAGES


@dataclass(frozen=True)
class Recorded:
    """One step: ops, states before and after, batch and results. The recorder keeps storages alive.

    Constants that it reads were made before its ``stage``.
    """

    recorder: Recorder
    before: Snapshot
    after: Snapshot
    batch: Mapping[str, TensorRef]
    results: Mapping[str, TensorRef]
    stage: int = 0

    @property
    def nodes(self) -> list[Node]:
        return self.recorder.nodes


@dataclass(frozen=True)
class Job:
    """How to make a batch, run a step on it and look at the states; ``constants`` follow all of it."""

    batch: Callable[[], Mapping[str, torch.Tensor]]
    step: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
    look: Callable[[], Snapshot]
    parameters: Callable[[], Iterable[torch.Tensor]] = tuple
    constants: Constants = field(default_factory=Constants)

    def drop(self) -> None:
        """A step that is not recorded."""
        batch = self._begun()
        with watching(files=False), BOOK, Unrecorded():  # a recorder asks the book itself
            self.step(batch)

    def record(self, before: Snapshot) -> Recorded:
        batch = self._begun()
        stage = self.constants.stage
        recorder = Recorder()
        given = recorder.given(batch)
        with watching(), sharing(self.parameters), standing_in(before.holders), recording(recorder):
            results = self.step(batch)
        problems = [*real_writes(recorder.nodes), *recorder.strides.problems()]
        if problems:
            raise gathered(problems)
        if not isinstance(results, Mapping) or not all(isinstance(t, torch.Tensor) for t in results.values()):
            raise DefinitionError("a step returns its outputs as a mapping from names to tensors")
        # Detached, a result is a tensor of its own: a later step cannot rebind it.
        found = {name: reference(local_tensor(tensor.detach())) for name, tensor in results.items()}
        after = self.look()
        recorder.strides.read([*found.values(), *(s.ref for s in after.states.values() if not s.empty)], None)
        if problems := recorder.strides.problems():
            raise gathered(problems)
        return Recorded(recorder, before, after, given, found, stage)

    def _begun(self) -> Mapping[str, torch.Tensor]:
        """A batch anew: a loader gives each step its own tensors."""
        batch = self.batch()
        self.constants.foreign(batch.values())
        self.constants.stage += 1
        return batch


def record(job: Job, rebuilds: bool) -> tuple[Recorded, Recorded, int]:
    """Two consecutive settled steps, and how many went before them.

    ``rebuilds``: the model changes its program by itself in its first steps, as DDP's buckets do; then steps
    are dropped until two are alike, at most :data:`WARM_UPS`.
    """
    job.drop()
    last: Recorded | None = None
    at = job.look()
    for dropped in range(1, WARM_UPS + 2):
        step = job.record(at)
        at = step.after
        change = unsettled(step.before, step.after)
        if change is None and last is not None:
            if not rebuilds or same(last, step) or dropped > WARM_UPS:
                return last, step, dropped - 1
        elif last is not None and change is not None:
            raise change
        if change is not None and dropped > WARM_UPS:
            change.message += f"; it does not settle in {WARM_UPS + 1} steps"
            raise change
        last = step if change is None else None
    raise AssertionError("unreachable")


def same(first: Recorded, second: Recorded) -> bool:
    """Are two steps one stream of ops, up to the identities of storages?"""
    matching = _Matching()
    return (
        matching.states(first.before, second.before)
        and matching.equal(first.batch, second.batch)
        and len(first.nodes) == len(second.nodes)
        and all(map(matching.nodes, first.nodes, second.nodes))
        and matching.equal(first.results, second.results)
        and matching.states(first.after, second.after)
    )


class _Matching:
    """A bijection between the storages of two steps that grows as they are compared."""

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._works_there: dict[object, object] = {}

    def storage(self, a: int, b: int) -> bool:
        return self._there.setdefault(a, b) == b and self._back.setdefault(b, a) == a

    def states(self, a: Snapshot, b: Snapshot) -> bool:
        return a.states.keys() == b.states.keys() and all(
            self.equal(state.ref, b.states[name].ref) for name, state in a.states.items()
        )

    def nodes(self, a: Node, b: Node) -> bool:
        if a.op != b.op:
            return False
        if a.op == "storage.resize":
            return self.storage(a.args[0], b.args[0])
        if a.op.startswith("dist.") and not self._works(a, b):
            return False
        if a.op in _ABOUT_WORKS:
            return True
        return (
            self.equal(a.args, b.args)
            and (a.op.startswith("dist.") or self.equal(a.kwargs, b.kwargs))
            and self.equal(a.outs, b.outs)
            and self.equal(a.writes, b.writes)
        )

    def _works(self, a: Node, b: Node) -> bool:
        """Works are numbered anew in every step."""
        numbers = [
            tree_leaves((n.args if n.op in _ABOUT_WORKS else (), sorted(n.kwargs.items()))) for n in (a, b)
        ]
        return len(numbers[0]) == len(numbers[1]) and all(
            self._works_there.setdefault(m, n) == n for m, n in zip(*numbers, strict=True)
        )

    def equal(self, a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if isinstance(a, TensorRef):
            return self.storage(a.storage, b.storage) and replace(b, storage=a.storage) == a
        if isinstance(a, tuple | list):
            return len(a) == len(b) and all(map(self.equal, a, b))
        if isinstance(a, Mapping):
            return a.keys() == b.keys() and all(self.equal(value, b[key]) for key, value in a.items())
        return bool(a == b)


def one_program(
    first: Recorded,
    second: Recorded,
    lower: Callable[[Recorded], RankProgram],
    place: Callable[[str], Place | None],
    run: Callable[[], object],
    constants: Set[int],
) -> RankProgram:
    """The program of both steps; what two steps show that later ones do otherwise is an error.

    Steps that find ``constants`` made may find others, in the same ops. A number that changes is looked for
    at its ``place``, and the line that changes it in a further ``run``.
    """
    program = lower(first)
    problems: list[CaptureError] = []
    if constants or not same(first, second):
        problems += _differences(program, lower(second))
    problems += list(_moved((first, second), constants))[:1]
    count = counted(first.before.numbers, first.after.numbers, place, run)
    count = count or counted(second.before.numbers, second.after.numbers, place, run)
    problems += [] if count is None else [count]
    if problems:
        raise gathered(problems)
    return program


def _moved(steps: Sequence[Recorded], constants: Set[int]) -> Iterator[StateError]:
    """Constants that a step reads and puts elsewhere: a later one may find another in their place."""
    for step in steps:
        before, after = step.before.constants, step.after.constants
        for name in dict.fromkeys((*before, *after)):
            was, now = before.get(name), after.get(name)
            if was != now and constants & {ref.storage for ref in (was, now) if ref is not None}:
                yield StateError(
                    f"the step changes which constant {name} is: a later step may read another one",
                    instead="a batch entry, a buffer or optimizer state for what may differ between steps",
                )


def _differences(first: RankProgram, second: RankProgram) -> Iterator[StateError]:
    """The first difference of two programs that reaches an output."""
    one, other = by_use(first), by_use(second)
    if one_and_the_same(one, other):
        return
    a, b = first_unlike(first, second)
    if a is not None and b is not None:
        yield StateError(
            f"the second step runs {described(b)} where the first ran {described(a)}",
            frame=b.frame,
            instead="a batch entry, a buffer or optimizer state for what may differ between steps",
        )
        return
    for extra, which in ((a, "first"), (b, "second")):
        if extra is not None:
            yield StateError(f"only the {which} of two steps runs {described(extra)}", frame=extra.frame)
            return
    for name in {**one.outputs, **other.outputs}:
        if one.outputs.get(name) != other.outputs.get(name):
            yield StateError("two consecutive steps give it from different ops", tensor=name)
            return
    if dict(first.inputs) != dict(second.inputs) or first.groups != second.groups:
        yield StateError("two consecutive steps read different inputs")


def by_use(program: RankProgram) -> RankProgram:
    """The program with its ops in the order in which rendezvous, then outputs, need them.

    DTensor works out a rule with ops on tensors of the whole, once: a constant among them that the step has,
    too, stands earlier in the first step than in the second.
    """
    made = {draft.out: draft for draft in program.drafts}
    names: dict[str, str] = {}
    ops: list[Draft] = []
    roots = [d.out for d in program.drafts if d.name in _MEETS]
    waiting = [*roots, *(program.outputs[name] for name in sorted(program.outputs))][::-1]
    while waiting:
        draft = made.get(waiting[-1])
        missing = [] if draft is None else [x for x in draft.ins if x in made and x not in names]
        if missing and waiting[-1] not in names:
            waiting += missing[::-1]
            continue
        out = waiting.pop()
        if draft is not None and out not in names:
            names[out] = f"%{len(ops)}"
            ops.append(renamed(draft, names))
    outputs = {name: names.get(value, value) for name, value in program.outputs.items()}
    return replace(program, drafts=tuple(ops), outputs=outputs)


def one_and_the_same(one: RankProgram, other: RankProgram) -> bool:
    """Are these one program, wherever it is written?"""
    a, b = (([*map(content, p.drafts)], dict(p.outputs), dict(p.inputs), p.groups) for p in (one, other))
    return a == b


def first_unlike(one: RankProgram, other: RankProgram) -> Sequence[Draft | None]:
    """The first op of each, as they were recorded, that computes what the other one computes nowhere."""
    numbers: dict[object, int] = {}
    ops = [[*_meant(program, numbers)] for program in (one, other)]
    a, b = (Counter(number for number, _ in found) for found in ops)
    return [_beyond(found, a & b) for found in ops]


def _beyond(ops: Iterable[tuple[int, Draft]], common: Counter[int]) -> Draft | None:
    for number, draft in ops:
        if not common[number]:
            return draft
        common[number] -= 1
    return None


def _meant(program: RankProgram, numbers: dict[object, int]) -> Iterator[tuple[int, Draft]]:
    """Ops that an output or a rendezvous needs, each with a number for what it computes."""
    needed = set(program.outputs.values())
    kept: list[Draft] = []
    for draft in reversed(program.drafts):
        if draft.out in needed or draft.name in _MEETS:
            needed.update(draft.ins)
            kept.append(draft)
    known: dict[str, int] = {}
    met = 0
    for draft in reversed(kept):
        met += draft.name in _MEETS
        ins = tuple(known.get(x, x) for x in draft.ins)
        computes = draft.name, ins, draft.type, repr(draft.attrs), met if draft.name in _MEETS else None
        known[draft.out] = numbers.setdefault(computes, len(numbers))
        yield known[draft.out], draft


def content(draft: Draft) -> tuple[object, ...]:
    return draft.out, draft.name, draft.ins, draft.type, draft.attrs


def described(draft: Draft) -> str:
    attrs = "".join(f" {key}={value}" for key, value in draft.attrs)
    return f"{draft.name}{attrs} at {place(draft.frame)}"


def place(frame: Frame | None) -> str:
    """``file.py:line`` of the user's code."""
    return "no line of yours" if frame is None else f"{Path(frame[0]).name}:{frame[1]}"
