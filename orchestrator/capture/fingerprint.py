"""Launch-time check: is what this job is about to run the certified plan, on every rank?

Each rank traces its own training step under fake tensors in a child process and compares it with the plan's
program at its own coordinates, op by op, rank-dependent integers evaluated. The ranks then exchange one small
record each. So no rank is interpolated, and a mismatch names the rank and the op.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from certificates.canonical import canonical_bytes, digest
from certificates.plan.affine import Affine
from certificates.plan.functions import inline
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.program import Attr, Op, Program
from certificates.plan.reading import load
from certificates.plan.writing import dumps

from ..outlining.outline import in_order
from .assemble import FOR_OTHERS, rank_program
from .builder import Met
from .checks import checked
from .definition import Definition
from .errors import CaptureError, DefinitionError, FingerprintError
from .messages import THROUGH, channel
from .refusals import guarded, refused
from .tracing import trace

#: What a rank reports instead of a position: it runs the plan; it could not be traced.
_SAME, _FAILED = -1, -2
FORMAT = "trainverify-fingerprint"


@dataclass(frozen=True)
class Fingerprint:
    """Every rank runs the plan with this digest; ``program`` is the digest of this rank's own program."""

    plan: str
    program: str
    ranks: int
    rank: int = 0

    def record(self) -> bytes:
        """This rank's record of the launch, which ``tv-check --fingerprint`` compares with a plan."""
        return canonical_bytes({"format": FORMAT, "version": 1, **vars(self)})

    def write(self, folder: Path | str) -> Path:
        """Write the record into a folder that all ranks share; what is there is not overwritten."""
        path = Path(folder, f"rank-{self.rank:06}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(self.record())
        return path


@dataclass(frozen=True)
class _Line:
    """One input, op or output in canonical form; ``where`` describes it to a person."""

    text: str
    where: str


def fingerprint(
    definition: Definition, plan: Plan | Path | str, group: dist.ProcessGroup | None = None
) -> Fingerprint:
    """Compare this job with ``plan``; all ranks of ``group`` (default: all) call it, before training.

    Call it before the first backward pass and before CUDA is in use: the trace runs in a forked child. Any
    difference on any rank is a :class:`FingerprintError` on every rank.
    """
    if torch.cuda.is_initialized():
        raise DefinitionError("the fingerprint is taken in a forked child: call it before CUDA is in use")
    plan = plan if isinstance(plan, Plan) else load(plan)
    if plan.mesh.time:
        raise DefinitionError(
            f"the plan has a time axis ({', '.join(plan.mesh.time)}): launches are compared without one"
        )
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size != plan.mesh.ranks or dict(definition.mesh) != dict(plan.mesh.axes):
        raise FingerprintError(
            f"the job has {size} ranks as {dict(definition.mesh)}, the plan {dict(plan.mesh.axes)}"
        )
    problem = ""
    try:
        traced = traced_lines(definition, plan, rank)
        at = _first_difference(expected_lines(plan, rank), traced)
    except CaptureError as error:
        traced, at, problem = [], _FAILED, str(error)
    program = hashlib.sha256("\n".join(line.text for line in traced).encode()).hexdigest()
    plan_digest = digest(dumps(plan))
    records = _gather(bytes.fromhex(plan_digest) + at.to_bytes(8, "little", signed=True), group)
    wrong = {r: int.from_bytes(data[32:], "little", signed=True) for r, data in enumerate(records)}
    wrong = {r: position for r, position in wrong.items() if position != _SAME}
    if any(data[:32] != records[0][:32] for data in records):
        raise FingerprintError("the ranks were given different plan files")
    if wrong:
        first = min(wrong, key=lambda r: (wrong[r], r))
        if rank in wrong:  # this rank knows what it found; the others know only where
            raise _mismatch(plan, rank, at, traced, problem, len(wrong))
        raise _mismatch(plan, first, wrong[first], None, "", len(wrong))
    return Fingerprint(plan_digest, program, size, rank)


def expected_lines(plan: Plan, rank: int) -> list[_Line]:
    """The plan's program at one rank, canonically."""
    at = plan.mesh.coordinates(rank)
    return _canonical(inline(plan).class_of(at).program, at, plan.sources, _channels(plan))


def traced_lines(definition: Definition, plan: Plan, rank: int) -> list[_Line]:
    """What one rank of a job is about to run, canonically; with the rendezvous that others need."""
    return _canonical(_traced_in_child(definition, rank, _needed(plan)), {})


def _mismatch(
    plan: Plan, rank: int, position: int, traced: list[_Line] | None, problem: str, count: int
) -> FingerprintError:
    others = (
        f"; {count - 1} other rank{'s' * (count > 2)} differ{'s' * (count == 2)} too" if count > 1 else ""
    )
    if position == _FAILED:
        what = problem or "see its own error"
        return FingerprintError(f"rank {rank} could not be traced: {what}{others}", rank=rank)
    wanted = expected_lines(plan, rank)
    want = wanted[position] if position < len(wanted) else None
    op = "the end of the program" if want is None else want.where
    message = f"rank {rank} does not run the certified plan from {op} on"
    if traced is not None:
        got = traced[position].text if position < len(traced) else "nothing"
        message += f": it runs {got}, the plan {'nothing' if want is None else want.text}"
    return FingerprintError(message + others, op=op, rank=rank)


def _first_difference(wanted: list[_Line], traced: list[_Line]) -> int:
    for i, (want, got) in enumerate(zip(wanted, traced, strict=False)):
        if want.text != got.text:
            return i
    return _SAME if len(wanted) == len(traced) else min(len(wanted), len(traced))


def _canonical(
    program: Program,
    at: Mapping[str, int],
    sources: tuple[str, ...] = (),
    channels: Mapping[object, str] | None = None,
) -> list[_Line]:
    """A program at one rank: integers for affine forms, equal pure ops merged, meetings counted per group.

    ``channels`` says of a plan's messages where a rank finds them. Ops stand in the order of a plan with
    functions, which hands no data movement over from call to call.
    """
    program = in_order(program)
    lines = [_Line(f"{name}: {type_}", f"input {name}") for name, type_ in program.inputs.items()]
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    meetings: dict[object, int] = {}
    for op in program.ops:
        attrs = {key: _at_rank(value, at) for key, value in op.attrs.items()}
        if op.name in COLLECTIVES:
            attrs["seq"] = meetings[attrs["group"]] = meetings.get(attrs["group"], -1) + 1
        if op.name in MESSAGES:
            end = "to" if op.name == "send" else "from"
            place = channel(op) if channels is None else channels.get(attrs["seq"], "")
            attrs = {end: attrs[end], "channel": place}
        operands = " ".join(names.get(v, v) for v in op.ins)
        items = " ".join(f"{key}={value}" for key, value in sorted(attrs.items()))
        text = f"{op.name} {operands} {op.type} {items}"
        if op.name not in COLLECTIVES | MESSAGES and text in known:
            names[op.out] = known[text]
            continue
        names[op.out] = known[text] = f"%{len(known)}"
        lines.append(_Line(text, _where(op, sources)))
    lines += [_Line(f"{n} = {names.get(v, v)}", f"output {n}") for n, v in sorted(program.outputs.items())]
    return lines


def _where(op: Op, sources: tuple[str, ...]) -> str:
    place = f" ({sources[op.loc.source]}:{op.loc.line} {op.loc.function})" if op.loc and sources else ""
    return f"{op.out} {op.name} {op.type}{place}"


def _at_rank(value: Attr, at: Mapping[str, int]) -> object:
    if isinstance(value, Affine):
        return value.evaluate(at)
    return [_at_rank(v, at) for v in value] if isinstance(value, tuple) else value


def _gather(record: bytes, group: dist.ProcessGroup | None) -> list[bytes]:
    """Every rank's record, in rank order."""
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")
    mine = torch.tensor(list(record), dtype=torch.uint8, device=device)
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    return [bytes(t.cpu().tolist()) for t in theirs]


def _needed(plan: Plan) -> frozenset[Met]:
    """Rendezvous that the plan keeps for other ranks; a plan that names wrong ones is another program."""
    named = plan.provenance.get(FOR_OTHERS, [])
    told = ((*str(name).split(" "), "")[:3] for name in (named if isinstance(named, list) else []))
    return frozenset((group, int(at), op) for group, at, op in told if at.isdigit())


def _channels(plan: Plan) -> dict[object, str]:
    """The channel of each message, and its place there, by number."""
    named = plan.provenance.get(THROUGH, [])
    pairs = (str(name).partition(" ") for name in (named if isinstance(named, list) else []))
    return {int(seq): place for seq, _, place in pairs if seq.isdigit()}


def _traced_in_child(definition: Definition, rank: int, needed: frozenset[Met]) -> Program:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(definition, rank, needed, theirs))
    process.start()
    theirs.close()
    try:
        result = ours.recv()
    except EOFError:
        raise CaptureError("the process that traced this rank died", rank=rank) from None
    finally:
        ours.close()
        process.join()
    if isinstance(result, CaptureError):
        raise result
    assert isinstance(result, Program)
    return result


def _child(definition: Definition, rank: int, needed: frozenset[Met], connection: Connection) -> None:
    torch.set_num_threads(1)
    kept = _leave_process_groups()
    try:
        with guarded():
            result: Program | CaptureError = rank_program(trace(checked(definition), rank, needed).program)
    except (Exception, SystemExit) as error:
        result = refused(error).at(definition.frame).at_rank(rank)
    connection.send(result)
    connection.close()
    assert kept is not None
    os._exit(0)  # a destructor of a group would wait for threads that the fork did not take along


def _leave_process_groups() -> list[object]:
    """Forget the job's process groups without closing them: they belong to the parent.

    They are returned so that no destructor runs.
    """
    world = c10d._world
    kept: list[object] = [*world.pg_map, c10d.GroupMember.WORLD]
    c10d._update_default_pg(None)
    for table in (
        *(world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config),
        *(world.pg_to_tag, world.tags_to_pg, world.pg_coalesce_state),
    ):
        table.clear()
    c10d._unregister_all_process_groups()
    world.group_count = 0
    return kept
