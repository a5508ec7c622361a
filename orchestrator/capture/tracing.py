"""Traces one rank (or the single device) of a definition: build, warm up, record two steps, lower one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule

from certificates.plan.plan import Mesh
from certificates.plan.program import INPUT_NAME

from .beside import begun_outside
from .builder import Met
from .builtin_names import given_to_modules
from .callers import begun_as, callers_unseen
from .constants import Constants
from .conversions import converted_as_in_a_job
from .copies import copied_by_ops
from .counters import place_of, reached
from .cutting import Cut, parallelized
from .ddp import built
from .definition import Definition
from .device_threads import threads_of_the_engine
from .disguise import disguised
from .entropy import draws_counted
from .environment import alone, as_rank
from .errors import (
    AliasingError,
    CaptureError,
    DefinitionError,
    LayoutError,
    StateError,
    gathered,
)
from .generators import Drawing
from .group import Agreed, Made, agreements, communicators
from .kernels import kernels_stay
from .known import Bounds, Known
from .launched import by_a_launcher
from .layouts import Layout, axes_of
from .lowering import Lowering, RankProgram
from .lowering.empties import padded
from .making import optimizer_of
from .modes import alone_on_the_stack, modes_stay
from .names import parameters
from .pipelining import static_stages
from .rates import taken_for_numbers
from .recorder import GroupRef, Node
from .shims import (
    capturable_on_cpu,
    exact_norm_shares,
    one_path,
    symbolic_hyperparameters,
    writes_forget,
    written_elsewhere,
)
from .states import GRADIENTS, HYPER, Snapshot, held, kind, states_of
from .steps import Job, Recorded, one_program, record
from .swallowed import told
from .validations import validated
from .whole_numbers import with_whole_numbers

_BEGUN = "is there before the first step, which adds to it: no relation says what it is"
_ANEW = "zero_grad() at the end of parallelize, or of build"
_LEFT = "the step leaves it as FSDP has gathered it, and the next step begins with all of it"
_SHARDED = (
    "fully_shard(module, …, reshard_after_forward=True), or module.reshard() after its forward pass: "
    "without a backward pass a root module stays gathered"
)
_NAMED = (
    "other names for parameters, modules, buffers, results, entries of the batch or of an optimizer's state"
)


@dataclass(frozen=True)
class RankTrace:
    """One traced rank; ``layouts`` by input name, ``shims`` that not every trace needs. ``rank`` is ``None``
    for the single device. ``ranges`` are those that ``build`` gives to integer buffers: on a rank, to those
    of which the program relies on it."""

    rank: int | None
    program: RankProgram
    layouts: Mapping[str, Layout]
    shims: tuple[str, ...] = ()
    ranges: Mapping[str, Bounds] = field(default_factory=dict)
    #: Learning rates of the optimizer as it was made, by the input that takes their place.
    rates: Mapping[str, float] = field(default_factory=dict)
    #: Its groups, as it made them.
    communicators: Mapping[GroupRef, Made] = field(default_factory=dict)
    #: What the Reducers of DistributedDataParallel compared with the other ranks.
    agreed: Mapping[GroupRef, tuple[Agreed, ...]] = field(default_factory=dict)
    #: Buffers that ``build`` makes of zeros, and that are zero when the model is parallelized.
    zeros: frozenset[str] = frozenset()


def trace(definition: Definition, rank: int | None, needed: frozenset[Met] = frozenset()) -> RankTrace:
    """Trace in this process, whose default process group must not exist yet.

    Rendezvous that other ranks have ``needed`` stay in the program. A step that cannot be captured is a
    :class:`CaptureError`; who traces says of which rank.
    """
    given = definition.build, definition.parallelize, definition.optimizer, definition.step
    users = (*given, definition.parallel_step or definition.step)
    alone_on_the_stack()
    place = alone() if rank is None else as_rank(rank, Mesh(definition.mesh).ranks)
    around = (
        given_to_modules(),
        place,
        copied_by_ops(),
        writes_forget(),
        one_path(),
        converted_as_in_a_job(),
        disguised(*users),
        taken_for_numbers(),
    )
    checks = modes_stay(), draws_counted(), kernels_stay(), validated(), callers_unseen()
    launched = by_a_launcher(), begun_as(definition.frame[0] if definition.frame else "")
    with contextlib.ExitStack() as stack:
        for each in (*around, *checks, *launched, threads_of_the_engine()):
            stack.enter_context(each)
        return _trace(definition, rank, needed)


def _trace(definition: Definition, rank: int | None, needed: frozenset[Met]) -> RankTrace:
    mesh = Mesh(definition.mesh)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    known, constants, drawing = Known(), Constants(), Drawing()
    with begun_outside(), fake, told(), known, constants.following(), drawing:
        model = definition.build()
    constants.foreign(held(model))
    step = definition.step
    cuts: Mapping[str, Cut] = {}
    watching = known if known.built(model) else contextlib.nullcontext()
    if rank is not None:
        with begun_outside(), constants.following(), drawing:
            model, cuts = _parallel(definition, mesh, model)
        step = definition.parallel_step or step
    constants.foreign(held(model))
    with begun_outside(), fake, watching, constants.following():  # some optimizers make their states at once
        optimizer = optimizer_of(definition.optimizer, model)
    constants.foreign(held(model, optimizer))
    with fake:
        rates = symbolic_hyperparameters(optimizer)
    begun = [f"{GRADIENTS}.{n}" for n, p in parameters(model) if p.grad is not None]

    def look() -> Snapshot:
        states = states_of(definition, model, optimizer, rank is not None)
        constants.foreign(state.held for state in states.values())
        found = reached(step, model, optimizer)
        return Snapshot(states, found.numbers, constants.among(found.tensors), found.holders)

    job = Job(
        batch=lambda: {
            name: torch.zeros(local_shape(definition, name, rank is not None), dtype=item.dtype)
            for name, item in definition.batch.items()
        },
        step=lambda batch: step(model, optimizer, batch),
        look=look,
        parameters=lambda: _parameters(model, optimizer),
        constants=constants,
    )
    with (
        capturable_on_cpu(optimizer) as used,
        static_stages() as agreed,
        exact_norm_shares(),
        fake,
        watching,
        constants.following(),
    ):
        first, second, _ = record(job, rebuilds=built())
    written_elsewhere(optimizer, definition.frame)
    ranges = known.ranges(model if rank is None else None)

    def again() -> None:
        with capturable_on_cpu(optimizer), static_stages(), exact_norm_shares(), fake:
            job.drop()

    read = {
        recorded.stage: constants.read(recorded.nodes, recorded.results.values(), recorded.stage)
        for recorded in (first, second)
    }
    program = one_program(
        first,
        second,
        lambda s: _lower(definition, rank, s, constants.making(read[s.stage]), needed, ranges),
        lambda path: place_of(path, step, model, optimizer),
        again,
        set().union(*read.values()),
    )
    if problems := [*_misread(first, program, model), *_begun(definition, program, begun)]:
        raise gathered(problems)
    layouts = {
        name: s.layout.cut_as(name, cuts)
        for name, s in first.before.states.items()
        if s.layout is not None and name in program.inputs
    }
    used_of = program.inputs if rank is None else program.relied
    ranges = {name: bounds for name, bounds in ranges.items() if name in used_of}
    zeros = known.zeros if rank is None else _still(known.zeros, cuts)
    rest = communicators(), agreements(), zeros.intersection(program.inputs)
    return RankTrace(rank, program, layouts, tuple(sorted(used | agreed)), ranges, rates, *rest)


def _begun(definition: Definition, program: RankProgram, names: Sequence[str]) -> Iterator[CaptureError]:
    """Gradients that are there before the first step, and that the step reads."""
    for name in names:
        if name in program.inputs:
            yield LayoutError(_BEGUN, tensor=name, frame=definition.frame, instead=_ANEW)


def _misread(step: Recorded, program: RankProgram, model: nn.Module) -> Iterator[CaptureError]:
    """What stands against the states that a step reads, and the names of these."""
    states = step.before.states.items()
    yield from (s.problem for name, s in states if s.problem is not None and name in program.inputs)
    yield from (*_misnamed(program), *_gathered(step, program, model))


def _gathered(step: Recorded, program: RankProgram, model: nn.Module) -> Iterator[CaptureError]:
    """Parameters of which FSDP has left the ranks more than their shards: after a forward pass with no
    backward pass, those of a module at which it begins."""
    names = {id(parameter): name for name, parameter in parameters(model)}
    modules = (m for m in model.modules() if isinstance(m, FSDPModule))
    for group in (g for m in modules for g in m._get_fsdp_state()._fsdp_param_groups if g.is_unsharded):
        of = (getattr(p._module_info.module, p._module_info.param_name, None) for p in group.fsdp_params)
        for name in (f"params.{names[id(p)]}" for p in of if id(p) in names):
            layout = step.before.states[name].layout
            if name in program.inputs and layout is not None and layout.shards is None:
                yield LayoutError(_LEFT, tensor=name, instead=_SHARDED)


def _misnamed(program: RankProgram) -> list[CaptureError]:
    return [
        StateError("a name in a plan has letters, digits, _ and . only", tensor=name, instead=_NAMED)
        for name in {**program.inputs, **program.outputs}
        if not INPUT_NAME.match(name)
    ]


def _parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    for group in optimizer.param_groups:
        yield from group["params"]


def _still(zeros: AbstractSet[str], cuts: Mapping[str, Cut]) -> frozenset[str]:
    """The buffers that hold nothing but elements of such ones when the model was parallelized."""
    of = {name: cut.parts for name, cut in cuts.items() if cut.parts is not None}
    return frozenset(n for n, parts in of.items() if n in zeros and all(p.source in zeros for p in parts))


def _parallel(definition: Definition, mesh: Mesh, model: nn.Module) -> tuple[nn.Module, Mapping[str, Cut]]:
    """The model of this rank, and how it was cut.

    Outside the fake mode: a device mesh computes with real tensors.
    """
    device_mesh = dist.init_device_mesh("cpu", tuple(mesh.axes.values()), mesh_dim_names=tuple(mesh.axes))
    return parallelized(definition.parallelize, model, device_mesh)


def _lower(
    definition: Definition,
    rank: int | None,
    step: Recorded,
    found: Sequence[Node],
    needed: frozenset[Met],
    ranges: Mapping[str, Bounds],
) -> RankProgram:
    """The program of a recorded step: inputs read as bound before it, outputs as bound after it.

    ``found`` made the constants that it finds made.
    """
    mesh = Mesh(definition.mesh)
    lowering = Lowering(
        lambda group: axes_of(mesh, rank, group.ranks),
        rank,
        specification=rank is None,
        coordinates=lambda other: tuple(mesh.coordinates(other).values()),
    )
    nodes = with_whole_numbers([*found, *step.nodes])
    lowering.run(nodes[: len(found)])  # before there are any inputs: no constant reads one
    states = {name: state for name, state in step.before.states.items() if not state.empty}
    for state in (s for s in step.before.states.values() if s.empty):
        padded(lowering, state.ref, state.held)
    for name in (n for n in states if kind(n) not in (GRADIENTS, HYPER)):
        lowering.add_input(name, states[name].ref, ranges.get(name))
    for name, ref in step.batch.items():
        lowering.add_input(f"batch.{name}", ref, definition.batch[name].bounds)
    for name in (n for n in states if kind(n) == HYPER):
        lowering.add_input(name, states[name].ref)
    for name in (n for n in states if kind(n) == GRADIENTS):
        with contextlib.suppress(AliasingError):  # reading one that was not added is an error
            lowering.add_input(name, states[name].ref)
    lowering.run(nodes[len(found) :])
    outputs, carried = dict(step.results), {}
    for name, state in ((n, s) for n, s in step.after.states.items() if not s.empty):
        if kind(name) == GRADIENTS:
            carried[name] = state.ref
        elif kind(name) not in ("buffers", HYPER) or lowering.read(state.ref).name != name:
            outputs[name] = state.ref
    return lowering.finish(outputs, carried, needed)


def local_shape(definition: Definition, name: str, parallel: bool) -> tuple[int, ...]:
    """The rows of a batch tensor that one rank reads."""
    item = definition.batch[name]
    shape = list(item.shape)
    for axis, dim in item.shard.items() if parallel else ():
        size = definition.mesh.get(axis)
        if size is None or shape[dim] % size:
            raise DefinitionError(
                f"dimension {dim} of {shape} does not divide over axis {axis}", tensor=f"batch.{name}"
            )
        shape[dim] //= size
    return tuple(shape)
