"""How a model is cut is traced: wrong cuts are refused with what was cut, right ones need no declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from certificates.plan.plan import Plan, Relation
from orchestrator.capture import Batch, Definition, capture, cutting
from orchestrator.capture.environment import as_rank
from orchestrator.capture.errors import LayoutError

Cut = Callable[[Tensor, int, int], Tensor]


class Two(nn.Module):
    """Two square weights of one size: whatever is taken for whatever has the right shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(8, 8))
        self.b = nn.Parameter(torch.zeros(8, 8))
        self.register_buffer("scale", torch.ones(8))


class Held(nn.Module):
    """A rank's tensors."""

    def __init__(self, **held: Tensor) -> None:
        super().__init__()
        for name, tensor in held.items():
            if name == "scale":
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, nn.Parameter(tensor))


def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No weight is used: nothing but how they are cut can be wrong."""
    optimizer.step()
    return {"loss": (batch["x"] * model.scale).sum()}


def definition(cut: Cut | None, parallelize: Any = None, **changes: Any) -> Definition:
    """``a`` is cut by ``cut(whole, rank, ranks)`` over four ranks, the rest is replicated."""

    def by_hand(model: Any, mesh: DeviceMesh) -> nn.Module:
        assert cut is not None
        rank, ranks = mesh.get_local_rank("tp"), mesh["tp"].size()
        a = cut(model.a.detach(), rank, ranks)
        return Held(a=a, b=model.b.detach().clone(), scale=model.scale)

    base = Definition(
        name="two",
        mesh={"tp": 4},
        build=Two,
        parallelize=parallelize or by_hand,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=step,
        batch={"x": Batch((4, 8))},
        layouts={"a": {"tp": 0}, "b": {}},
    )
    return dataclasses.replace(base, **changes)


def relation(plan: Plan, name: str) -> Relation:
    return next(r for r in plan.inputs if r.spec == name)


def held(plan: Plan, name: str) -> dict[int, list[list[int]]]:
    """Per rank, which element of the specification's tensor each element of the local tensor is."""
    out: dict[int, list[list[int]]] = {}
    for rank in range(plan.mesh.ranks):
        at = plan.mesh.coordinates(rank)
        found: dict[tuple[int, ...], list[int]] = {}
        for piece in relation(plan, name).pieces:
            if piece.cls != plan.class_of(at).name:
                continue
            for digits in torch.cartesian_prod(*(torch.arange(n) for n in piece.sizes)).reshape(
                -1, len(piece.sizes)
            ):
                values = at | {f"z{i}": int(d) for i, d in enumerate(digits)}
                found[tuple(f.evaluate(values) for f in piece.plan)] = [
                    f.evaluate(values) for f in piece.spec
                ]
        out[rank] = [[*local, *found[local]] for local in sorted(found)]
    return out


def rows(w: Tensor, rank: int, ranks: int) -> Tensor:
    return w.chunk(ranks)[rank].clone()


# --- one rank, traced alone --------------------------------------------------------------------------------


def traced(made: Definition, name: str = "params.a", rank: int = 1) -> cutting.Cut:
    """How one rank cuts a tensor: in a process of its own, as PyTorch remembers device meshes."""

    def cut(connection: Any) -> None:
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            model = made.build()
        try:
            with as_rank(rank, 4):
                mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
                connection.send(cutting.parallelized(made.parallelize, model, mesh)[1][name])
        except Exception as error:
            connection.send(error)

    context = torch.multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=cut, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, cutting.Cut)
    return found


def first_column(cut: cutting.Cut) -> list[tuple[str | None, int]]:
    """Source and row of the first element of each local row, of a tensor that is cut in whole rows."""
    found: dict[int, tuple[str | None, int]] = {}
    for part in cut.parts or ():
        for row in range(part.sizes[0] if len(part.sizes) > 1 else 1):
            at = {"z0": row if len(part.sizes) > 1 else 0, "z1": 0}
            source_row = part.index[0].evaluate(at) if part.source else -1
            found[part.at[0].evaluate(at)] = part.source, source_row
    return [found[row] for row in sorted(found)]


def code(cut: cutting.Cut) -> str:
    """The code of the line at which a tensor was cut."""
    assert cut.frame is not None and cut.frame[0] == __file__
    with open(__file__, encoding="utf-8") as file:
        return file.readlines()[cut.frame[1] - 1].strip()


def test_rows_that_are_looked_up_by_number_are_known() -> None:
    """A real tensor of numbers is a table; an empty one that no weight is made of says nothing."""

    def look_up(w: Tensor, rank: int, ranks: int) -> Tensor:
        torch.cat([torch.zeros(0), w[:1]])
        return w[torch.tensor([2 * rank + 1, 2 * rank])]

    cut = traced(definition(look_up))
    assert first_column(cut) == [("params.a", 3), ("params.a", 2)] and not cut.agreed
    assert code(cut) == "return w[torch.tensor([2 * rank + 1, 2 * rank])]"


def test_a_cut_is_told_at_the_line_that_wrote_it() -> None:
    def fill(w: Tensor, rank: int, ranks: int) -> Tensor:
        made = w.new_empty(2, 8)
        made.copy_(w.narrow(0, 2 * rank, 2))
        return made.view(2, 8)

    cut = traced(definition(fill))
    assert first_column(cut) == [("params.a", 2), ("params.a", 3)]
    assert code(cut) == "made.copy_(w.narrow(0, 2 * rank, 2))"


def test_what_is_computed_or_cannot_be_followed_is_no_shard_whatever_is_declared() -> None:
    """What is made anew may be declared; what is made of the model's values may not."""
    twice = traced(definition(lambda w, rank, ranks: rows(w, rank, ranks) * 2))
    assert twice.computed and twice.why == "is computed from params.a (multiply)"
    mixed = torch.randperm(6000, generator=torch.Generator().manual_seed(0)) % 8
    lost = traced(definition(lambda w, rank, ranks: w[mixed]))
    assert lost.computed and lost.why == "cannot be followed: more than 2048 pieces"
    fresh = traced(definition(lambda w, rank, ranks: w.new_zeros(2, 8)))
    assert not fresh.computed and fresh.why == "holds nothing of the single device's tensors"
    random = traced(definition(lambda w, rank, ranks: torch.randn_like(w[:2])))
    assert not random.computed and random.why == fresh.why


def passing(model: Any, mesh: DeviceMesh) -> nn.Module:
    """A broadcast and a scatter, as other frameworks hand out what they have loaded."""
    a, b = model.a.detach().clone(), torch.empty_like(model.b[:2])
    dist.broadcast(a, 1)
    dist.scatter(b, [c.clone() for c in model.b.detach().chunk(4)] if dist.get_rank() == 2 else None, src=2)
    return Held(a=a, b=b, scale=model.scale)


def test_a_broadcast_and_a_scatter_pass_on_what_the_source_has() -> None:
    """Of the source its digests are kept: every rank has to pass the same. Others see nothing."""
    made = definition(None, passing, layouts=None)
    there = {rank: traced(made, rank=rank) for rank in (0, 1)}
    for cut in there.values():
        assert first_column(cut) == [("params.a", row) for row in range(8)]
        assert [key.rpartition("#")[2] for key, _ in cut.agreed] == ["0.0"]
    assert there[0].agreed == there[1].agreed
    scattered = traced(made, "params.b", rank=2)
    assert first_column(scattered) == [("params.b", 4), ("params.b", 5)]
    assert [key.rpartition("#")[2] for key, _ in scattered.agreed] == [f"1.{i}" for i in range(4)]
    got = traced(made, "params.b", rank=1)
    assert got.parts is None and "a collective while the model is cut" in got.why


def test_chunks_of_distribute_tensor_are_known_on_ranks_that_only_get_them() -> None:
    def distribute(model: Any, mesh: DeviceMesh) -> nn.Module:
        a, b = (
            distribute_tensor(w.detach(), mesh, [placement])
            for w, placement in ((model.a, Shard(0)), (model.b, Replicate()))
        )
        return Held(a=a, b=b, scale=model.scale)

    made = definition(None, distribute, layouts=None)
    assert first_column(traced(made, rank=3)) == [("params.a", 6), ("params.a", 7)]
    assert first_column(traced(made, "params.b", rank=3)) == [("params.b", row) for row in range(8)]


def test_a_parameter_of_two_names_stays_one() -> None:
    class Tied(Two):
        def __init__(self) -> None:
            super().__init__()
            self.c = self.a

    def untie(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.c = nn.Parameter(model.a.detach().clone())
        return model

    with pytest.raises(LayoutError, match="is one parameter with a on a single device") as caught:
        traced(definition(None, untie, build=Tied, layouts=None))
    assert caught.value.tensor == "params.c"
    assert first_column(traced(definition(None, lambda model, mesh: model, build=Tied, layouts=None)))


# --- whole captures ----------------------------------------------------------------------------------------


WRONG: dict[str, tuple[Cut, str]] = {
    "first rows everywhere": (
        lambda w, rank, ranks: w[: len(w) // ranks].clone(),
        r"holds params\.a\[0:2, 0:8\] where its layout implies params\.a\[2:4, 0:8\] "
        r"\(tensor params\.a, rank 1\)\n.*test_cutting\.py:\d+.*\n? *lambda w, rank",
    ),
    "ranks reversed": (
        lambda w, rank, ranks: rows(w, ranks - 1 - rank, ranks),
        r"holds params\.a\[6:8, 0:8\] where its layout implies params\.a\[0:2, 0:8\]",
    ),
    "another dimension": (
        lambda w, rank, ranks: w.chunk(ranks, 1)[rank].reshape(2, 8),
        r"parts of params\.a \(local .* where its layout implies params\.a\[0:2, 0:8\]",
    ),
    "transposed": (
        lambda w, rank, ranks: w.t().chunk(ranks)[rank].contiguous(),
        r"parts of params\.a \(local \[z0, z1\] = params\.a\[z1, z0\]\)",
    ),
    "every fourth row": (
        lambda w, rank, ranks: w[rank::ranks].clone(),
        r"parts of params\.a \(local \[z0, z1\] = params\.a\[4\*z0, z1\]\)",
    ),
    "twice": (lambda w, rank, ranks: rows(w, rank, ranks) * 2, r"computed from params\.a \(multiply"),
    "a sum of two shards": (
        lambda w, rank, ranks: rows(w, rank, ranks) + rows(w, 0, ranks),
        r"computed from params\.a \(add",
    ),
    "an op that has no lowering": (
        lambda w, rank, ranks: rows(w, rank, ranks).lgamma(),
        r"computed from params\.a \(no lowering for lgamma",
    ),
    "half of it zeros": (
        lambda w, rank, ranks: torch.cat([rows(w, rank, ranks)[:1], w.new_zeros(1, 8)]),
        "a literal",
    ),
    "looked-up rows": (
        lambda w, rank, ranks: w[torch.tensor([2 * rank + 1, 2 * rank])],
        r"parts of params\.a",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cut_is_refused_with_what_was_cut(name: str) -> None:
    cut, message = WRONG[name]
    with pytest.raises(LayoutError, match=message):
        capture(definition(cut), jobs=1)


RIGHT: dict[str, Cut] = {
    "chunk": rows,
    "slice": lambda w, rank, ranks: w[2 * rank : 2 * rank + 2].clone(),
    "narrow": lambda w, rank, ranks: w.narrow(0, 2 * rank, 2).contiguous(),
    "view": lambda w, rank, ranks: w.view(ranks, 2, 8)[rank],
    "index_select": lambda w, rank, ranks: w.index_select(0, torch.arange(2 * rank, 2 * rank + 2)),
    "list of rows": lambda w, rank, ranks: w[[2 * rank, 2 * rank + 1]],
    "rows counted from the end": lambda w, rank, ranks: w[torch.arange(2 * rank - 8, 2 * rank - 6)],
    "copied": lambda w, rank, ranks: w.new_empty(2, 8).copy_(w[2 * rank : 2 * rank + 2]),
    "flat": lambda w, rank, ranks: w.flatten()[16 * rank : 16 * rank + 16].clone().view(2, 8),
    "there and back": lambda w, rank, ranks: rows(w.t().contiguous().t(), rank, ranks).half().float(),
    "joined": lambda w, rank, ranks: torch.cat([w[2 * rank : 2 * rank + 1], w[2 * rank + 1 : 2 * rank + 2]]),
    "padded and cut": lambda w, rank, ranks: F.pad(w, (0, 0, 0, 4)).narrow(0, 2 * rank, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_cut_agrees_with_its_layout_and_needs_none(name: str) -> None:
    plan = capture(definition(RIGHT[name]), jobs=1)
    assert "declared, not traced" not in plan.provenance
    assert relation(plan, "params.a") == relation(
        capture(definition(RIGHT[name], layouts=None), jobs=1), "params.a"
    )
    assert held(plan, "params.a")[1][0] == [0, 0, 2, 0]


@pytest.mark.slow
def test_what_is_cut_otherwise_than_in_boxes_is_claimed_as_it_is_cut() -> None:
    """Without a declaration, every fourth row is every fourth row: the program must be right for that."""
    cut = WRONG["every fourth row"][0]
    plan = capture(definition(cut, layouts=None), jobs=1)
    assert [row[::2] for row in held(plan, "params.a")[1]][::8] == [[0, 1], [1, 5]]


@pytest.mark.slow
def test_what_is_made_anew_rests_on_its_declaration_and_the_plan_says_so() -> None:
    made = definition(lambda w, rank, ranks: w.new_empty(2, 8))
    assert capture(made, jobs=1).provenance["declared, not traced"] == ["params.a"]
    with pytest.raises(LayoutError, match=r"without a declared layout.*nothing of the single device's"):
        capture(dataclasses.replace(made, layouts={"b": {}}), jobs=1)


def swapped(model: Any, mesh: DeviceMesh) -> nn.Module:
    return Held(a=model.b.detach(), b=model.a.detach(), scale=model.scale)


@pytest.mark.slow
@pytest.mark.parametrize("layouts", [{"a": {}, "b": {}}, None])
def test_parameters_that_are_swapped_are_refused(layouts: Any) -> None:
    with pytest.raises(LayoutError, match=r"holds params\.b\[0:8, 0:8\]"):
        capture(definition(None, swapped, layouts=layouts), jobs=1)


@pytest.mark.slow
def test_a_buffer_is_cut_too() -> None:
    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.scale = model.scale[mesh.get_local_rank("tp") :][:1].expand(8).clone()
        return model

    with pytest.raises(LayoutError, match=r"buffers\.scale\[z0 \* 0|parts of buffers\.scale"):
        capture(definition(None, parallelize, layouts={"a": {}, "b": {}, "scale": {}}), jobs=1)


def placed(place: Callable[[Tensor, DeviceMesh], Tensor]) -> Callable[[Any, DeviceMesh], nn.Module]:
    """``a`` becomes the DTensor that ``place`` makes of it."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        return Held(a=place(model.a.detach(), mesh), b=model.b.detach(), scale=model.scale)

    return parallelize


def local_rows(mesh: DeviceMesh, w: Tensor, shift: int = 0) -> Tensor:
    return w.chunk(4)[(mesh.get_local_rank("tp") + shift) % 4]


DTENSORS: dict[str, tuple[Callable[[Tensor, DeviceMesh], Tensor], str]] = {
    "distributed": (lambda w, mesh: distribute_tensor(w, mesh, [Shard(0)]), ""),
    "distributed unevenly": (lambda w, mesh: distribute_tensor(w[:7], mesh, [Shard(0)]), r"holds shape"),
    "cut on each rank": (
        lambda w, mesh: distribute_tensor(w, mesh, [Shard(1)], src_data_rank=None),
        "",
    ),
    "from what each rank holds": (
        lambda w, mesh: DTensor.from_local(local_rows(mesh, w), mesh, [Shard(0)]),
        "",
    ),
    "from the next rank's rows": (
        lambda w, mesh: DTensor.from_local(local_rows(mesh, w, 1), mesh, [Shard(0)]),
        r"holds params\.a\[2:4, 0:8\] where its layout implies params\.a\[0:2, 0:8\]",
    ),
    "one shard as if it were all": (
        lambda w, mesh: distribute_tensor(torch.cat([local_rows(mesh, w)] * 4), mesh, [Shard(0)]),
        "ranks . and . pass different tensors to one scatter|holds parts",
    ),
    "replicas that differ": (
        lambda w, mesh: distribute_tensor(torch.cat([local_rows(mesh, w)] * 4), mesh, [Replicate()]),
        "ranks . and . pass different tensors to one scatter or broadcast",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DTENSORS)
def test_placements_of_dtensors_are_compared_with_what_they_hold(name: str) -> None:
    place, message = DTENSORS[name]
    if message:
        with pytest.raises(LayoutError, match=message):
            capture(definition(None, placed(place), layouts=None), jobs=1)
    else:
        plan = capture(definition(None, placed(place), layouts=None), jobs=1)
        assert "declared, not traced" not in plan.provenance


@pytest.mark.slow
def test_a_broadcast_passes_on_what_every_rank_has() -> None:
    """As the constructor of DistributedDataParallel does: flat buckets, copied back."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        held = [t.detach() for t in (model.a, model.b, model.scale)]
        dist._broadcast_coalesced(mesh["tp"].get_group(), held, 1 << 20, 0)
        return model

    plan = capture(definition(None, parallelize, layouts=None), jobs=1)
    assert held(plan, "params.a")[3][-1] == [7, 7, 7, 7]
    assert "declared, not traced" not in plan.provenance


@pytest.mark.slow
def test_a_broadcast_of_different_tensors_is_refused() -> None:
    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        rank = mesh.get_local_rank("tp")
        own = (
            torch.cat([model.a.detach()[rank:], model.a.detach()[:rank]])
            if rank
            else model.a.detach().clone()
        )
        dist.broadcast(own, 0)
        return Held(a=own, b=model.b.detach(), scale=model.scale)

    with pytest.raises(LayoutError, match="pass different tensors to one scatter or broadcast"):
        capture(definition(None, parallelize, layouts=None), jobs=1)


@pytest.mark.slow
def test_random_numbers_are_declared_not_traced() -> None:
    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        nn.init.normal_(model.a, std=0.02)
        nn.init.zeros_(model.b)
        return model

    plan = capture(definition(None, parallelize, layouts={"a": {}, "b": {}}), jobs=1)
    assert plan.provenance["declared, not traced"] == ["params.a", "params.b"]


@pytest.mark.slow
def test_tied_parameters_stay_tied() -> None:
    class Tied(Two):
        def __init__(self) -> None:
            super().__init__()
            self.c = self.a

    def untie(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.c = nn.Parameter(model.a.detach().clone())
        return model

    with pytest.raises(LayoutError, match=r"one parameter with a on a single device.*params\.c"):
        capture(definition(None, untie, build=Tied, layouts=None), jobs=1)
    capture(definition(None, lambda model, mesh: model, build=Tied, layouts=None), jobs=1)


def by_head(w: Tensor, rank: int, ranks: int) -> Tensor:
    """Query, key and value of this rank's heads, out of one fused weight: queries, then keys, then values."""
    return torch.cat([part.chunk(ranks)[rank] for part in w.view(2, 4, 8)])


@pytest.mark.slow
def test_fused_weights_are_cut_in_parts() -> None:
    plan = capture(definition(by_head, layouts=None), jobs=1)
    rows_of = {rank: [row[2] for row in table[::8]] for rank, table in held(plan, "params.a").items()}
    assert rows_of == {0: [0, 4], 1: [1, 5], 2: [2, 6], 3: [3, 7]}
    assert [p.spec[0].coef("tp") for p in relation(plan, "params.a").pieces] == [1, 1]
    with pytest.raises(LayoutError, match=r"parts of params\.a"):
        capture(definition(by_head), jobs=1)


@pytest.mark.slow
def test_data_that_is_rebound_in_parallelize_is_read_as_it_is_bound() -> None:
    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.a.data = model.a.data.chunk(4)[mesh.get_local_rank("tp")].clone()
        model.register_parameter(
            "b", nn.Parameter(model.b.detach().chunk(3)[min(mesh.get_local_rank("tp"), 2)])
        )
        return model

    with pytest.raises(LayoutError, match=r"params\.b"):
        capture(definition(None, parallelize, layouts={"a": {"tp": 0}, "b": {"tp": 0}}), jobs=1)
