"""Runs a recorded trace through the table of lowerings and keeps what reaches the outputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from torch.utils._pytree import tree_leaves, tree_map

from certificates.plan.ops import COLLECTIVES, ELEMENTWISE, MESSAGES
from certificates.plan.types import TensorType

from ..builder import REFUSED, WAIT, Builder, Draft, Met, Value, renamed
from ..errors import (
    AliasingError,
    CaptureError,
    ClosureError,
    GroupError,
    LoweringError,
    UnsupportedOpError,
    gathered,
)
from ..geometry import Geometry
from ..memory import Memory
from ..missing import instead_of
from ..recorder import GroupRef, Node, TensorRef
from ..refusals import OUTSIDE
from ..signatures import foreign
from ..waits import Waits
from .arguments import bind
from .complex import conjugate
from .decompositions import Expansion, expand
from .empties import without_empties
from .foreach import single_ops
from .kept_numbers import Numbers
from .overlaps import check_overlaps
from .picked import PLACES, PickedOp, refused
from .routing import read_by
from .sizes import Sizes, has_amount
from .table import EFFECTS, Called, Context, Rooted, find

#: Ops of these namespaces speak to other ranks. None is a view, and none is dropped because it is unknown.
_COMMUNICATION = ("dist.", "c10d.", "_c10d_functional", "_dtensor.", "symm_mem.")
_ON_ALL_RANKS = (
    "all_reduce (or all_gather) where every rank needs the result; or read it on the root alone, and "
    "broadcast what "
    "is made of it"
)
_UNKNOWN = (
    ": whatever its schema says, no trace knows what an op outside of PyTorch writes, so it is refused "
    "whether or not its result is used"
)
#: Ops whose results are elements of their operands, and those that make numbers of them.
_MOVES = frozenset(("reshape", "transpose", "broadcast_in_dim", "convert", "slice", "concatenate"))
_COMPUTES = ELEMENTWISE - {"select", "convert"} | {"dot_general", "reduce", "all_reduce", "reduce_scatter"}
_WRITTEN = "torch.zeros(…) instead of torch.empty(…), or a write to every element that is read"


@dataclass(frozen=True)
class RankProgram:
    """The pure program of one rank (or of the single device), dead code dropped."""

    inputs: Mapping[str, TensorType]
    drafts: tuple[Draft, ...]
    outputs: Mapping[str, str]
    #: Axes and ordinal of every communicator in use.
    groups: tuple[tuple[tuple[str, ...], int], ...]
    #: Rendezvous that are in the program, and those without a reader here.
    kept: frozenset[Met] = frozenset()
    dropped: frozenset[Met] = frozenset()
    #: What its outputs take for granted of PyTorch.
    assumed: tuple[str, ...] = ()
    #: How many collectives and barriers it calls on each communicator, in the program or not.
    called: tuple[Called, ...] = field(default=(), compare=False)
    #: Integer inputs that it takes for non-negative, as their bounds say.
    relied: frozenset[str] = frozenset()
    #: What calls with a root say of theirs.
    roots: tuple[Rooted, ...] = field(default=(), compare=False)


class Lowering:
    """One trace. Register inputs, :meth:`run` the nodes, :meth:`finish` with the output tensors."""

    def __init__(
        self,
        group_axes: Callable[[GroupRef], tuple[str, ...]],
        rank: int | None = None,
        *,
        specification: bool = False,
        coordinates: Callable[[int], Sequence[int]] = lambda rank: (rank,),
    ) -> None:
        """``specification``: uninitialised memory that reaches an output is an error, not an input.
        ``coordinates`` are those of a rank on the mesh."""
        self.builder = Builder()
        self.memory = Memory(self.builder, self._missing)
        self.context = Context(self.builder, group_axes, rank=rank, coordinates=coordinates)
        self._problems: list[CaptureError] = []
        self._fatal: list[CaptureError] = []
        self._waits = Waits()
        self._reading: TensorRef | None = None
        self._fresh = 0
        #: Works that nobody waited for yet, with the messages and collectives that they are of.
        self._works: dict[int, list[Value]] = {}
        self.sizes = Sizes(self.context.rows, self.memory.knows)
        #: They keep storages alive, so that no two tensors share an identity.
        self._expansions: list[Expansion] = []
        self._specification = specification

    def add_input(self, name: str, ref: TensorRef, bounds: tuple[int, int] | None = None) -> None:
        """A state or batch tensor, of which the trace knows the contents by ``name``.

        ``bounds`` is the declared half-open range of an integer input.
        """
        place = ref.geometry
        if not place.distinct or self.memory.holds(ref.storage, place):
            raise AliasingError("its elements overlap, or are shared with another input", tensor=name)
        value = self.builder.input(name, TensorType(ref.dtype, place.size))
        if bounds is not None:
            self.builder.bounds[name] = bounds
        self.memory.put(ref.storage, place, value, beside=not self._specification)

    def read(self, ref: TensorRef) -> Value:
        if ref.literal is not None and not self.memory.knows(ref.storage):
            return self.builder.literal(ref.literal, TensorType(ref.dtype, ref.geometry.size))
        self.sizes.check(ref)
        self._reading = ref
        value = self.memory.read(ref.storage, ref.dtype, ref.geometry)
        return conjugate(self.context, value) if ref.conjugate else value

    def write(self, ref: TensorRef, value: Value) -> None:
        if ref.conjugate:
            raise AliasingError("a write through a lazily conjugated tensor")
        self.sizes.check(ref)
        self.memory.write(ref.storage, ref.dtype, ref.geometry, value)

    def undefined(self, ref: TensorRef) -> Value:
        """What a collective leaves in a buffer whose contents PyTorch does not define."""
        message = f"the step reads a buffer that {self.context.op} left undefined on this rank"
        error = GroupError(message, op=self.context.op, instead=_ON_ALL_RANKS)
        return self.refused(error, TensorType(ref.dtype, ref.geometry.size))

    def run(self, nodes: Sequence[Node]) -> None:
        for i, recorded in enumerate(nodes):
            if self.context.routing.full:
                self.context.routing.forget(self.memory.values(read_by(nodes[i:])))
            self.builder.frame, self.builder.caller = recorded.frame, recorded.caller
            self.context.op = recorded.op
            try:
                node = self.sizes.resolved(recorded, self.read)
            except LoweringError as error:
                self._lose(recorded, error)
                continue
            self._fatal += self._waits.see(node)
            if node.op == "storage.resize":
                self.memory.forget(node.args[0])
                continue
            known, routing = len(self.builder.drafts), self.context.routing
            drawn = {} if self.sizes.picked else routing.run(node, self.read, self.sizes.drawn)
            self.context.drawn = tuple(drawn.values())
            try:
                self._step(node)
                self._note_works(node, known)
            except CaptureError as error:
                error.op = node.op
                if foreign(node.op):
                    error.message += _UNKNOWN
                    self._fatal.append(error.at(node.frame))
                self._poison(node, error)
                if isinstance(error, UnsupportedOpError | GroupError) and node.op.startswith(_COMMUNICATION):
                    self._fatal.append(error.at(node.frame))  # other ranks may use what is lost here
            self._note_drawn(node, drawn)

    def _note_drawn(self, node: Node, drawn: Mapping[TensorRef, Numbers]) -> None:
        """What results are on drawn routings, unless the same value is another number there.

        An op may say that it has none. Positions of as many rows as a routing decides are a value of their
        own: those of another layer's rows are as many slots, and not as many rows.
        """
        for ref, numbers in drawn.items() if self.context.drawn else ():
            try:
                value = self.read(ref)
                positions = self.builder.made_by(value, "iota") if ref in self.sizes.varying else None
                if positions is not None:
                    value = self.builder.emit("iota", (), value.type, shared=False, **dict(positions.attrs))
                    self.write(ref, value)
                self.context.routing.note(value, numbers)
            except CaptureError as error:
                self._poison(node, error)

    def _note_works(self, node: Node, known: int) -> None:
        """Which messages and collectives a work is of, and where the program waits for them."""
        if "work" in node.kwargs:
            made = itertools.islice(reversed(self.builder.drafts.values()), len(self.builder.drafts) - known)
            ends = [Value(d.out, d.type) for d in made if d.name in COLLECTIVES | MESSAGES]
            self._works[node.kwargs["work"]] = ends[::-1]
        elif node.op == "dist.wait":
            for work in self._waits.before([node.args[0]]):
                for end in self._works.pop(work, ()):
                    self.builder.emit(WAIT, (end,), end.type, shared=False)

    def _step(self, node: Node) -> None:
        effect = EFFECTS.get(node.op)
        if node.sized and not node.view:
            self._check_rows(node, effect is not None)
        if effect is not None:
            if self.sizes.picked and node.op != PLACES:
                raise refused(node.op)
            effect(self, node)
            return
        single = single_ops(node)
        if single is not None:
            for part in single:
                self.context.op = part.op
                self._step(part)
            return
        node, of_nothing = without_empties(self, node)
        if of_nothing:
            return
        outs = _tensors(node.outs)
        if node.view and self.memory.lines.noted(outs, _tensors(node.args)):
            return  # its geometry over the storage says everything
        rule = find(node.op)
        expansion = expand(node) if rule is None else None
        if rule is None and expansion is None:
            raise UnsupportedOpError(node.op, instead=instead_of(node.op))
        given = {} if rule is None else bind(node.op, rule, node.args, node.kwargs)
        read = (node.args, dict(node.kwargs)) if rule is None else given
        if len({t.complex for t in _tensors(read)}) > 1:
            raise LoweringError("operands are complex and real")
        results = tree_leaves(node.outs)
        if node.writes and outs and len(outs) != len(node.writes):
            raise LoweringError("an op that writes some of its arguments and returns other tensors")
        for target, out in zip(node.writes, outs, strict=False):
            if target.storage == out.storage and target.geometry != out.geometry:
                raise AliasingError("an out= tensor of another shape, which the op resizes")
        check_overlaps(node)
        targets = list(node.writes) or results
        self.context.out = tuple(TensorType(t.dtype, t.geometry.size) for t in _tensors(targets))
        rows = PickedOp.of(self.context, node, self.sizes, read, targets)
        early = rows.early(self.read) if rows is not None else None
        if early is None and has_amount([*read] if rule is None else given):
            raise LoweringError("a number of rows, which a routing decides, among the numbers of the op")
        if early is not None:
            values: list[Value | None] = [*early]
        elif rule is None:
            assert expansion is not None
            values = self._expanded(expansion)
        else:
            given = tree_map(rows.reader(self.read) if rows is not None else self._value, given)
            lowered = rule.lower(self.context, **given)
            values = [lowered] if isinstance(lowered, Value) else list(lowered)
        if rows is not None:
            rows.check(values, self.read, looked_up=early is not None)
        if len(values) > len(targets):
            raise LoweringError(f"its lowering gives {len(values)} results for {len(targets)}")
        # Fake tensors stand in for a real one that is written: what the op returns is another storage.
        others = [t if t not in targets else None for t in outs] if node.writes else []
        for places in (targets, others):
            for i, target in enumerate(places):
                if isinstance(target, TensorRef):
                    value = values[i] if i < len(values) else None
                    self.write(target, value or self._no_result(target, i))

    def _value(self, x: object) -> object:
        return self.read(x) if isinstance(x, TensorRef) else x

    def _check_rows(self, node: Node, effect: bool) -> None:
        """Rows, as many as a routing decides, are packed, or what is made of them is again a row for each."""
        given = [t for t in _tensors((node.args, dict(node.kwargs))) if 0 not in t.geometry.size]

        def read(ref: TensorRef) -> Value | None:
            unread = ref not in given or self.memory.unwritten(ref.storage, ref.geometry)
            return None if unread else self.read(ref)

        loose = self.sizes.loose(read)
        made = [*_tensors(node.outs), *node.writes]
        if loose and (effect or any(t not in self.sizes.varying for t in made)):
            raise LoweringError(
                "what is made of all rows, as many as a routing decides, that no sort has packed"
            )

    def _expanded(self, expansion: Expansion) -> list[Value | None]:
        """The results of an op that PyTorch takes apart."""
        self._expansions.append(expansion)
        for given, stand_in in expansion.inputs:
            self.memory.write(stand_in.storage, stand_in.dtype, stand_in.geometry, self.read(given))
        op, out = self.context.op, self.context.out
        for part in expansion.nodes:
            self.context.op = part.op
            self._step(part)
        self.context.op, self.context.out = op, out
        values = [None if ref is None else self.read(ref) for ref in expansion.outs]
        if [v.type for v in values if v is not None] != list(out):
            raise LoweringError("PyTorch takes it apart into an op of another shape or type")
        return values

    def _no_result(self, target: TensorRef, index: int) -> Value:
        """Stands for a result that the lowering does not give; an error only if an output depends on it."""
        problem = LoweringError(f"result {index} of the op has no lowering", op=self.context.op)
        return self.refused(problem, TensorType(target.dtype, target.geometry.size))

    def _poison(self, node: Node, problem: CaptureError) -> None:
        """Everything the op may have written is unusable; an error only if an output depends on it."""
        sources = _tensors((node.args, dict(node.kwargs)))
        operands = []
        for source in sources:  # they stay live, so that all problems are listed
            if source in node.writes and self.memory.unwritten(source.storage, source.geometry):
                continue  # noise fills what empty() made
            try:
                operands.append(self.read(source))
            except CaptureError:
                continue
        written = [*_tensors(node.outs), *(sources if foreign(node.op) else node.writes)]
        for target in written or sources:
            if 0 in target.geometry.size:
                continue
            place = target.geometry
            if not place.dense:  # all that lies between its elements is lost too
                place = Geometry.contiguous((place.end - place.offset,), place.offset)
            value = self.refused(problem, TensorType(target.dtype, place.size), operands)
            self.memory.write(target.storage, target.dtype, place, value)

    def _lose(self, node: Node, problem: CaptureError) -> None:
        """An op on a tensor whose size has no place in a plan: what it may have written is unusable, all of
        the memory where nobody knows which part. A view has written nothing."""
        problem.op = node.op
        for target in [*(() if node.view else _tensors(node.outs)), *node.writes]:
            try:
                ref = self.sizes.reference(target)
                self.write(ref, self.refused(problem, TensorType(ref.dtype, ref.geometry.size)))
            except CaptureError:
                self.memory.lose(target.storage, functools.partial(self.refused, problem))
        if node.op.startswith(_COMMUNICATION):
            self._fatal.append(problem.at(node.frame))

    def refused(self, error: CaptureError, type_: TensorType, operands: Sequence[Value] = ()) -> Value:
        """A value that must not reach an output: if it does, ``error`` is raised."""
        self._problems.append(error.at(self.builder.frame))
        return self.builder.emit(REFUSED, operands, type_, shared=False, index=len(self._problems) - 1)

    def problem(self, draft: Draft) -> CaptureError | None:
        """What is wrong with a refused value; ``None`` for all others."""
        return self._problems[int(str(draft.attr("index")))] if draft.name == REFUSED else None

    def _missing(self, type_: TensorType, allocated: bool) -> Value:
        """Elements never written: unconstrained if anything may be there, else a value from outside."""
        ref = self._reading
        where = "" if ref is None else str(TensorType(ref.dtype, ref.geometry.size))
        if allocated and self._specification:
            # The plan's garbage is another: a proof may not take the two for equal.
            message = "an output of the single-device step depends on memory that nothing has written"
            unwritten = ClosureError(message, tensor=where, op=self.context.op, instead=_WRITTEN)
            return self.refused(unwritten, type_)
        if allocated:
            self._fresh += 1
            return self.builder.input(f"uninitialised.{self._fresh}", type_)
        message = (
            "the step reads a tensor that is no parameter, buffer, batch input, optimizer state or literal"
        )
        error = ClosureError(message, tensor=where, op=self.context.op, instead=OUTSIDE)
        return self.refused(error, type_)

    def finish(
        self,
        outputs: Mapping[str, TensorRef],
        carried: Mapping[str, TensorRef] | None = None,
        needed: AbstractSet[Met] = frozenset(),
    ) -> RankProgram:
        """Read the outputs, drop dead code, number values anew; live problems are raised.

        Inputs that are no longer read stay (they are state or batch) unless they are uninitialised memory.
        What is ``carried`` from step to step is an output if the input of its name is read, else neither.
        Rendezvous that another rank has ``needed`` are kept, whether or not this one reads their results, and
        so are all messages: the other end waits for them.
        """
        self.builder.frame = self.builder.caller = None
        results: dict[str, Value] = {}
        met = {(*d.meeting, d.name): d.out for d in self.builder.drafts.values() if d.meeting is not None}
        awaited = [out for met_by, out in met.items() if not needed.isdisjoint((met_by, (*met_by[:2], "")))]
        awaited += [d.out for d in self.builder.drafts.values() if d.name in MESSAGES]
        live = self.builder.reached(awaited)
        self._fatal += self._waits.left()
        carried, waiting = carried or {}, dict(outputs)
        while waiting:
            for name, ref in waiting.items():
                self.context.op = f"output {name}"
                self._fatal += self._waits.read(name, ref)
                results[name] = self.read(ref)
            live |= self.builder.reached([results[name].name for name in waiting])
            waiting = {n: ref for n, ref in carried.items() if n in live and n not in results}
        live |= {d.out for d in self.builder.drafts.values() if d.name == WAIT and d.ins[0] in live}
        drafts = [d for d in self.builder.drafts.values() if d.out in live]
        problems = [self._problems[int(str(d.attr("index")))] for d in drafts if d.name == REFUSED]
        problems = self._fatal + problems + list(_computed_with_garbage(drafts))
        if problems:
            raise gathered(dict.fromkeys(problems))
        inputs: dict[str, TensorType] = {}
        names: dict[str, str] = {}
        for name, type_ in self.builder.inputs.items():
            if name.startswith("uninitialised."):
                if name not in live:
                    continue
                names[name] = f"uninitialised.{sum(n.startswith('uninitialised.') for n in inputs)}"
            if name in carried and name not in live:
                continue
            inputs[names.get(name, name)] = type_
        names |= {d.out: f"%{i}" for i, d in enumerate(drafts)}
        return RankProgram(
            inputs,
            tuple(renamed(d, names) for d in drafts),
            {n: names.get(v.name, v.name) for n, v in results.items()},
            tuple(sorted(self.context.groups.keys() - self.context.barred)),
            frozenset(m for m, out in met.items() if out in live),
            frozenset(m for m, out in met.items() if out not in live),
            tuple(sorted({said for name, said in self.context.assumed.items() if name in live})),
            tuple(Called(k, n + 1, self.context.latest[k]) for k, n in sorted(self.context.groups.items())),
            frozenset(self.builder.relied),
            tuple(self.context.roots),
        )


def _computed_with_garbage(drafts: Sequence[Draft]) -> Iterator[CaptureError]:
    """Ops that compute with a tensor that nothing has written: 0 times what is no number is not 0."""
    garbage: set[str] = set()
    for draft in drafts:
        found = [v.startswith("uninitialised.") or v in garbage for v in draft.ins]
        if draft.name in _MOVES and found and all(found):
            garbage.add(draft.out)
        elif draft.name in _COMPUTES and any(found):
            message = f"{draft.name} of memory that nothing has written, which may hold no number"
            yield ClosureError(message, instead=_WRITTEN).at(draft.frame)


def _tensors(tree: object) -> list[TensorRef]:
    return [t for t in tree_leaves(tree) if isinstance(t, TensorRef)]
