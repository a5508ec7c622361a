"""Mistakes that a person makes: each is told with file, line and code, and with what to write instead.

Every mistake is traced on one rank or the single device, in one forked child; none where it is found before.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import distribute_tensor
from torch.nn.attention.flex_attention import flex_attention

from orchestrator.capture import Batch, CaptureError, Definition
from orchestrator.capture.checks import check
from orchestrator.capture.definition import Bucket
from orchestrator.capture.errors import UnsupportedOpError, gathered
from orchestrator.capture.missing import OPS, instead_of
from orchestrator.capture.processes import survey
from orchestrator.capture.refusals import REFUSALS, documented, guarded, refused

SEVERAL = torch.arange(4096.0).reshape(64, 64)
COMPILED = torch.compile(lambda y: y.square().mean())
SCALER = torch.amp.GradScaler("cpu")
BUILT = nn.Linear(4, 4, bias=False)
Tensors = Mapping[str, torch.Tensor]


def exchanges():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return nn.Linear(4, 4).double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@torch.library.custom_op("trainverify_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def finish(model: Any, optimizer: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach()}


def right(model: Any, optimizer: Any, batch: Tensors) -> dict[str, torch.Tensor]:
    return finish(model, optimizer, model(batch["x"]).square().mean())


def tiny(**changes: Any) -> Definition:
    fields: dict[str, Any] = {
        "name": "tiny",
        "mesh": {"dp": 2},
        "build": lambda: nn.Linear(4, 4, bias=False),
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": right,
        "batch": {"x": Batch((4, 4), shard={"dp": 0})},
        "layouts": {"weight": {}},
    }
    return Definition(**(fields | changes))


# --- code that cannot be traced -----------------------------------------------------------------------------


def calls_compiled(model, optimizer, batch):
    return finish(model, optimizer, COMPILED(model(batch["x"])))


def branches(model, optimizer, batch):
    loss = model(batch["x"]).sum()
    return finish(model, optimizer, torch.cond(loss > 1, lambda x: x * 2, lambda x: x + 1, (loss,)))


def attends_flexibly(model, optimizer, batch):
    x = model(batch["x"]).view(1, 1, 4, 4)
    return finish(model, optimizer, flex_attention(x, x, x).sum())


def looks_up_sparsely(model, optimizer, batch):
    rows = nn.functional.embedding(batch["n"], model.weight, sparse=True)
    rows.sum().backward()
    return {}


class Own(torch.Tensor):
    """What a user makes of tensors."""


def makes_a_subclass(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"].as_subclass(Own)).sum())


def validates(model, optimizer, batch):
    logits = model(batch["x"])
    try:
        chosen = torch.distributions.Categorical(logits=logits, validate_args=True)
    except ValueError:
        chosen = torch.distributions.Categorical(logits=torch.zeros_like(logits), validate_args=False)
    return finish(model, optimizer, chosen.log_prob(batch["n"]).sum())


def scales(model, optimizer, batch):
    SCALER.scale(model(batch["x"]).sum()).backward()
    SCALER.step(optimizer)
    return {}


def gathers_objects(model, optimizer, batch):
    dist.all_gather_object([None, None], "epoch 3")
    return right(model, optimizer, batch)


def looks_at_the_norm(model, optimizer, batch):
    model(batch["x"]).sum().backward()
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    except FloatingPointError:
        optimizer.zero_grad()
    return {}


def saves(model, optimizer, batch):
    torch.save(model.state_dict(), io.BytesIO())
    return right(model, optimizer, batch)


def translates(model, optimizer, batch):
    return finish(model, optimizer, torch.jit.trace(model, batch["x"])(batch["x"]).sum())


def prints_a_number(model, optimizer, batch):
    results = right(model, optimizer, batch)
    print(f"loss {results['loss']:.3f}")
    return results


def uses_numpy(model, optimizer, batch):
    scale = float(np.mean(batch["x"].numpy()))
    return finish(model, optimizer, model(batch["x"]).sum() * scale)


def finds_elements(model, optimizer, batch):
    y = model(batch["x"])
    return finish(model, optimizer, torch.masked_select(y, y > 0).mean())


def skips_an_empty_expert(model, optimizer, batch):
    y = model(batch["x"])
    counts = torch.bincount(torch.topk(y, 1).indices.flatten(), minlength=y.shape[1]).tolist()
    if counts[0] == 0:
        y = y * 2
    return finish(model, optimizer, y.mean())


def reads_a_value(model, optimizer, batch):
    results = right(model, optimizer, batch)
    print(results["loss"].item())
    return results


def lists_values(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"]).sum() * sum(batch["x"][0].tolist()))


def counts_rows(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"]).sum() / int(batch["x"].sum()))


def decides(model, optimizer, batch):
    loss = model(batch["x"]).square().mean()
    if loss > 100:
        loss = loss * 0
    return finish(model, optimizer, loss)


def wants_a_gpu(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"].cuda()).mean())


def makes_on_a_gpu(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"] + torch.ones(4, device="cuda")).mean())


def reduces_everywhere(model, optimizer, batch):
    loss = model(batch["x"]).mean()
    dist.all_reduce(loss)
    return finish(model, optimizer, loss)


def makes_the_group(model, mesh):
    dist.init_process_group("gloo")
    return model


def another_axis(model, mesh):
    return model if mesh["tp"].size() else None


def has_a_custom_op(model, optimizer, batch):
    return {"loss": halved(model(batch["x"]).detach()).mean()}


def another_key(model, optimizer, batch):
    return finish(model, optimizer, model(batch["y"]).mean())


def does_not_fit(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"].t()[:3].t()).mean())


def is_frozen(model, optimizer, batch):
    with torch.no_grad():
        loss = model(batch["x"]).mean()
    return finish(model, optimizer, loss)


def drops(model, optimizer, batch):
    return finish(model, optimizer, nn.functional.dropout(model(batch["x"]), 0.1).mean())


def adds_noise(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"] + torch.randn(4)).mean())


def takes_the_least(model, optimizer, batch):
    return finish(model, optimizer, model(batch["x"]).kthvalue(1, 0)[0].mean())


def rounds(model, optimizer, batch):
    return finish(model, optimizer, (model(batch["x"]) - model(batch["x"]).floor()).mean())


def multiplies_all(model, optimizer, batch):
    return {"loss": model(batch["x"]).detach().prod()}


def resizes(model, optimizer, batch):
    image = model(batch["x"])[None, None]
    return {"loss": nn.functional.interpolate(image.detach(), size=(5, 7), mode="bicubic").sum()}


def pools_adaptively(model, optimizer, batch):
    return {"loss": nn.functional.adaptive_max_pool2d(model(batch["x"]).detach()[None], 3).sum()}


def sums_bags(model, optimizer, batch):
    rows = torch.zeros(2, 3, dtype=torch.int64)
    return {"loss": nn.functional.embedding_bag(rows, model.weight.detach()).sum()}


def measures_distances(model, optimizer, batch):
    return {"loss": torch.cdist(model(batch["x"]).detach(), batch["x"]).sum()}


def scatters_by_mask(model, optimizer, batch):
    y = model(batch["x"]).detach()
    return {"loss": y.masked_scatter(y > 0, batch["x"]).sum()}


def takes_an_angle(model, optimizer, batch):
    return {"loss": model(batch["x"]).detach().atan().sum()}


def decomposes(model, optimizer, batch):
    return {"loss": torch.linalg.svdvals(model(batch["x"]).detach()).sum()}


def draws_its_batch(model, optimizer, batch):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch["x"]), batch_size=2)
    return finish(model, optimizer, sum(model(x).mean() for (x,) in loader))


def registers_twice():
    model = nn.Linear(4, 4)
    model.mask = 0
    model.register_buffer("mask", torch.ones(4))
    return model


def watches(model, optimizer, batch):
    dist.monitored_barrier()
    return right(model, optimizer, batch)


def splits_the_group(model, mesh):
    model.group = dist.split_group(dist.group.WORLD, [[0, 1]])
    return model


def distributes_half(model, mesh):
    model.bias = None
    model.weight = nn.Parameter(distribute_tensor(model.weight, mesh))
    return model


def distributes_the_weight(model, mesh):
    model.scale = nn.Parameter(torch.ones(4))
    model.weight = nn.Parameter(distribute_tensor(model.weight, mesh))
    return model


def clips_both_kinds(model, optimizer, batch):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return right(model, optimizer, batch)


#: Beginning of a row of the tables, what is wrong, where it is traced, and code of the line that is named.
Case = tuple[str, dict[str, Any], int | None, str]
NUMBERS = {"n": Batch((4,), torch.int64, {"dp": 0}, (0, 4))}
TRACED: list[Case] = [
    ("`torch.compile`", {"step": calls_compiled}, None, "COMPILED(model("),
    (
        "`torch.compile`",
        {"build": lambda: torch.compile(nn.Linear(4, 4))},
        None,
        'model(batch["x"]).square()',
    ),
    ("`torch.cond`", {"step": branches}, None, "torch.cond("),
    ("`flex_attention`", {"step": attends_flexibly}, None, "flex_attention(x, x, x)"),
    (
        "sparse tensors",
        {"step": looks_up_sparsely, "batch": NUMBERS},
        None,
        "rows.sum().backward()",
    ),
    ("subclasses of", {"step": makes_a_subclass}, None, ".as_subclass(Own)"),
    (
        "`torch.distributions` with",
        {"step": validates, "batch": {"x": Batch((4, 4), shard={"dp": 0}), **NUMBERS}},
        None,
        "validate_args=True",
    ),
    ("`GradScaler`", {"step": scales}, None, "SCALER.scale("),
    ("object collectives", {"step": gathers_objects}, 1, "dist.all_gather_object("),
    ("`clip_grad_norm_(", {"step": looks_at_the_norm}, None, "nn.utils.clip_grad_norm_("),
    ("`torch.save`", {"step": saves}, None, "torch.save("),
    ("`torch.jit.trace`", {"step": translates}, None, "torch.jit.trace("),
    ("a tensor in a text", {"step": prints_a_number}, None, "print(f"),
    ("NumPy", {"step": uses_numpy}, None, "scale = float("),
    ("shapes that depend", {"step": finds_elements}, None, "torch.masked_select("),
    ("the value of a tensor", {"step": reads_a_value}, None, 'print(results["loss"].item())'),
    ("the value of a tensor", {"step": lists_values}, None, ".tolist()"),
    ("the value of a tensor", {"step": counts_rows}, None, 'int(batch["x"].sum())'),
    ("the value of a tensor", {"step": decides}, None, "if loss > 100:"),
    ("a number of rows that", {"step": skips_an_empty_expert}, None, "if counts[0] == 0:"),
    ("devices", {"step": wants_a_gpu}, None, ".cuda()"),
    ("devices", {"step": makes_on_a_gpu}, None, 'device="cuda"'),
    ("`torch.distributed` in", {"step": reduces_everywhere}, None, "dist.all_reduce(loss)"),
    ("`init_process_group`", {"parallelize": makes_the_group}, 0, "dist.init_process_group("),
    (
        "an optimizer without",
        {"optimizer": lambda p: torch.optim.SGD([], lr=1.0)},
        None,
        "torch.optim.SGD([],",
    ),
    ("custom ops", {"step": has_a_custom_op}, None, "halved(model("),
    ("an axis that", {"parallelize": another_axis}, 1, 'mesh["tp"]'),
    ("a key that", {"step": another_key}, None, 'batch["y"]'),
    ("a loss that", {"step": is_frozen}, None, "loss.backward()"),
    ("shapes that do not fit", {"step": does_not_fit}, 1, ".t()[:3]"),
    ("random numbers", {"step": drops}, None, "nn.functional.dropout("),
    ("random numbers", {"step": adds_noise}, None, "torch.randn(4)"),
    ("selection by rank", {"step": takes_the_least}, None, ".kthvalue(1, 0)"),
    ("rounding and", {"step": rounds}, None, ".floor()"),
    ("products of many", {"step": multiplies_all}, None, ".prod()"),
    ("images of another size", {"step": resizes}, None, "interpolate("),
    ("pooling where", {"step": pools_adaptively}, None, "adaptive_max_pool2d("),
    ("`embedding_bag`", {"step": sums_bags}, None, "embedding_bag("),
    ("distances of all", {"step": measures_distances}, None, "torch.cdist("),
    ("a choice in the order", {"step": scatters_by_mask}, None, "masked_scatter("),
    ("inverse and special", {"step": takes_an_angle}, None, ".atan()"),
    ("Fourier transforms", {"step": decomposes}, None, "svdvals("),
    ("a `DataLoader` in", {"step": draws_its_batch}, None, "for (x,) in loader"),
    ("a buffer or parameter", {"build": registers_twice}, None, 'register_buffer("mask"'),
    ("`monitored_barrier`", {"parallel_step": watches}, 1, "dist.monitored_barrier()"),
    ("`split_group`", {"parallelize": splits_the_group}, 1, "dist.split_group("),
    ("plain tensors and DTensors", {"parallelize": distributes_half}, 1, 'model(batch["x"])'),
    (
        "plain tensors and DTensors",  # which is no look at the norm
        {"parallelize": distributes_the_weight, "step": clips_both_kinds},
        1,
        "nn.utils.clip_grad_norm_(",
    ),
    ("`torch.__future__", {"build": exchanges}, None, "nn.Linear(4, 4).double()"),
]


def told(changes: dict[str, Any], rank: int | None) -> CaptureError:
    return gathered(survey(tiny(**changes), [rank], 1))


@pytest.mark.parametrize(
    ("row", "changes", "rank", "code"), TRACED, ids=lambda x: getattr(x, "__name__", None)
)
def test_code_that_cannot_be_traced_is_told_with_its_line(
    row: str, changes: dict[str, Any], rank: int | None, code: str
) -> None:
    (instead,) = {r.instead for r in (*REFUSALS, *OPS) if r.what.startswith(row) or f"({row})" in r.what}
    error = told(changes, rank)
    found = [p for p in error.problems() if p.instead == instead]
    assert found, str(error)
    assert found[0].frame is not None and found[0].frame[0] == __file__
    assert code in Path(__file__).read_text("utf-8").splitlines()[found[0].frame[1] - 1], str(error)
    text = str(error)
    assert code in text and "test_refusals.py:" in text and "Traceback" not in text
    assert ("single device" if rank is None else f"rank {rank}") in text


def test_every_row_of_the_tables_has_a_mistake_above() -> None:
    rows = [r.what for r in (*REFUSALS, *OPS)]
    tried = [row for row, _changes, _rank, _code in TRACED]
    assert [r for r in rows if not any(r.startswith(t) or f"({t})" in r for t in tried)] == []


def test_the_page_shows_the_tables() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "capture.md"
    assert documented() in page.read_text("utf-8")


# --- what ranks say to one another --------------------------------------------------------------------------


def talking(talk: Callable[[Any], object]) -> dict[str, Any]:
    """A step of the ranks that does this with the model before it steps."""

    def step(model, optimizer, batch):
        loss = model(batch["x"]).square().mean()
        loss.backward()
        talk(model)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return {"parallel_step": step}


def multiplies(model):
    dist.all_reduce(model.weight.grad, op=dist.ReduceOp.PRODUCT)


def takes_from_anybody(model):
    dist.irecv(model.weight.grad).wait()


def makes_a_group(model):
    dist.all_reduce(model.weight.grad, group=dist.new_group([0, 1]))


def reads_what_the_root_has(model):
    dist.reduce(model.weight.grad, 0)


def takes_every_second(model):
    dist.all_reduce(model.weight.grad[:, ::2])


def unequal(model):
    out = [torch.empty(1, 4), torch.empty(3, 4)]
    dist.all_gather(out, model.weight.grad[:2])
    model.weight.grad.copy_(torch.cat(out))


@pytest.mark.parametrize(
    ("changes", "message", "code", "instead"),
    [
        (talking(multiplies), "a reduction by PRODUCT", "ReduceOp.PRODUCT", "ReduceOp.SUM, AVG, MAX or MIN"),
        (talking(takes_from_anybody), "a recv from any rank", "dist.irecv(", "dist.recv(tensor, src=rank)"),
        (talking(makes_a_group), "the step makes a process group", "dist.new_group(", "once, in parallelize"),
        (talking(reads_what_the_root_has), "left undefined on this rank", "dist.reduce(", "all_reduce"),
        (talking(takes_every_second), "a tensor with gaps", "[:, ::2]", "tensor.contiguous()"),
        (talking(unequal), "pieces of different shapes", "dist.all_gather(", "padded"),
    ],
)
def test_what_ranks_cannot_say_to_one_another(
    changes: dict[str, Any], message: str, code: str, instead: str
) -> None:
    text = str(told(changes, 1))
    assert message in text and code in text and "test_refusals.py:" in text and "Traceback" not in text
    assert "write instead: " in text and instead in text.split("write instead: ", 1)[1]


def test_a_process_group_that_is_made_and_swallowed_is_told_all_the_same() -> None:
    def quietly(model):
        with contextlib.suppress(CaptureError):
            dist.new_group([0, 1])

    assert "the step makes a process group" in str(told(talking(quietly), 0))


def test_a_group_across_the_axes_of_the_mesh_is_told_what_a_mesh_is() -> None:
    def parallelize(model, mesh):
        model.odd = dist.new_group([0, 2])
        return model

    def odd_ones(model):
        if dist.get_rank() in (0, 2):
            dist.reduce_scatter_tensor(torch.empty(2, 4), model.weight.grad, group=model.odd)

    text = str(told({**talking(odd_ones), "parallelize": parallelize, "mesh": {"dp": 4}}, 0))
    assert (
        "reduce_scatter over the group [0, 2], which is no fibre of mesh axes" in text
        and "write instead: Definition.mesh with an axis" in text
    )


def test_a_scatter_to_a_tensor_that_is_not_of_the_models_is_told_how_to_make_one() -> None:
    def parallelize(model, mesh):
        out = torch.empty(2, 4)
        dist.scatter(out, list(model.weight.detach().chunk(2)) if dist.get_rank() == 0 else None, src=0)
        model.weight = nn.Parameter(out)
        return model

    text = str(told({"parallelize": parallelize}, 1))
    assert "torch.distributed.scatter on a real tensor" in text and "parameter.new_empty(…)" in text


def test_noise_in_fresh_memory_is_one_problem() -> None:
    """Dropout fills what empty_like made: that nothing has written it before is no second problem."""
    text = str(told({"step": drops}, None))
    assert "no lowering for bernoulli_" in text and "nothing has written" not in text


# --- what functions return, and what is read from outside ---------------------------------------------------


def old_loss() -> Callable[..., Any]:
    kept: list[torch.Tensor] = []

    def step(model, optimizer, batch):
        loss = model(batch["x"]).mean() + (kept[-1] if kept else 0)
        kept.append(loss.detach())
        return finish(model, optimizer, loss)

    return step


def fails(model, optimizer, batch):
    raise ValueError("the batch\nis empty")


def leaves(model, optimizer, batch):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("changes", "rank", "message", "code", "instead"),
    [
        ({"step": lambda m, o, b: None}, None, "returns None, not a mapping", "returns None", "return {"),
        ({"step": lambda m, o, b: b["x"]}, None, "returns a tensor, not a mapping", 'b["x"]}', "return {"),
        ({"step": lambda m, o, b: (b["x"], 0)}, None, "returns a tuple", '(b["x"], 0)', "return {"),
        (
            {"step": lambda m, o, b: {"loss": 3.0}},
            None,
            "a float as 'loss'",
            '"loss": 3.0',
            "the tensor itself",
        ),
        ({"step": lambda m, o, b: {"params.w": b["x"]}}, None, "are taken", '"params.w"', "another name"),
        (
            {"parallelize": lambda m, mesh: None},
            0,
            "parallelize returns None",
            "mesh: None",
            "return the model",
        ),
        (
            {"optimizer": lambda p: [1]},
            None,
            "optimizer returns a list",
            "lambda p: [1]",
            "torch.optim.Optimizer",
        ),
        (
            {"build": lambda: BUILT},
            None,
            "is a real tensor",
            "return Definition(",
            "a new model in each call",
        ),
        (
            {"step": old_loss()},
            None,
            "reads a tensor that is no parameter",
            "kept[-1] if kept",
            "register_buffer",
        ),
        ({"step": fails}, None, "ValueError: the batch is empty", "raise ValueError(", ""),
        ({"step": leaves}, None, "sys.exit(3)", "raise SystemExit(3)", ""),
        (
            {"step": lambda m, o, b: finish(m, o, m(b["x"] * SEVERAL[0, 1]).mean())},
            None,
            "a real tensor of shape [64, 64]",
            "* SEVERAL[",
            "register_buffer",
        ),
    ],
)
def test_wrong_results_and_values_from_outside(
    changes: dict[str, Any], rank: int | None, message: str, code: str, instead: str
) -> None:
    text = str(told(changes, rank))
    assert message in text and code in text and ("write instead: " in text) == bool(instead)
    assert instead in text and "test_refusals.py:" in text and "Traceback" not in text


def test_all_problems_are_told_at_once_with_all_their_lines() -> None:
    def step(model, optimizer, batch):
        a = model(batch["x"]).cumprod(0)
        b = model(batch["x"]).cumprod(1)
        c = (a + b + torch.randn(4)).erfinv()
        return finish(model, optimizer, c.mean() + a.cumprod(0).mean())

    error = gathered(survey(tiny(step=step, parallelize=lambda m, mesh: None), [None, 0, 1], 2))
    at = step.__code__.co_firstlineno
    text = str(error)
    missing = {p.op for p in error.problems() if isinstance(p, UnsupportedOpError)}
    assert missing >= {"aten.cumprod.default", "aten.randn.default", "aten.erfinv.default"}
    assert f"and 2 more at lines {at + 2}, {at + 4}\n" in text
    assert "definition: parallelize returns None, not an nn.Module (ranks 0, 1)" in text
    assert text.count("no lowering for cumprod") == 1


# --- the definition itself, before anything is traced -------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message", "instead"),
    [
        ({"mesh": {}}, "mesh is {}", 'mesh={"dp": 2'),
        ({"mesh": {"dp": 0}}, "mesh is {'dp': 0}", 'mesh={"dp": 2'),
        ({"mesh": {"dp": 3}}, "does not divide over axis dp of 3 ranks", "such as 6"),
        ({"build": BUILT}, "build is a Linear, not a function", "build=f"),
        ({"optimizer": None}, "optimizer is a NoneType, not a function", "optimizer=f"),
        ({"step": lambda m, b: None}, "too many positional arguments", "(model, optimizer, batch)"),
        ({"parallelize": lambda m: m}, "too many positional arguments", "(model, mesh)"),
        ({"batch": [Batch((4, 4))]}, "batch is a list", "Batch((8, 4)"),
        ({"batch": {"x": SEVERAL}}, "is a Tensor, not a Batch", "Batch(shape"),
        ({"batch": {"x": Batch((4, 0))}}, "its shape is (4, 0)", "Batch((8, 4)"),
        ({"batch": {"x": Batch((4, 4), shard={"tp": 0})}}, "the axis 'tp'", "an axis of the mesh: dp"),
        ({"batch": {"x": Batch((4, 4), shard={"dp": 2})}}, "the dimension 2 of [4, 4]", "0 to 1"),
        ({"batch": {"x": Batch((4, 4), bounds=(3, 3))}}, "no number lies in its bounds", "highest + 1"),
        ({"layouts": {"weight": {"tp": 0}}}, "names the axes ['tp']", "an axis of the mesh: dp"),
        ({"layouts": {"weight": 0}}, "layouts gives it 0", 'layouts={"weight"'),
        ({"mean_over": {"loss": "dp"}}, "the text 'dp'", 'mean_over={"loss": ("dp",)}'),
        ({"mean_over": {"loss": ("tp",)}}, "names the axes ['tp']", "an axis of the mesh: dp"),
        (
            {"buckets": {"params.flat": Bucket(("params.weight",), "tp")}},
            "axis 'tp'",
            "an axis of the mesh: dp",
        ),
    ],
)
def test_a_definition_that_contradicts_itself(changes: dict[str, Any], message: str, instead: str) -> None:
    with pytest.raises(CaptureError) as caught:
        check(tiny(**changes))
    text = str(caught.value)
    assert message in text and "write instead: " in text and instead in text and "test_refusals.py:" in text


def test_all_contradictions_are_told_at_once_at_the_lines_of_their_fields() -> None:
    definition = Definition(
        name="several",
        mesh={"dp": 3},
        build=lambda: nn.Linear(4, 4),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=right,
        batch={"x": Batch((4, 4), shard={"dp": 0})},
        layouts={"weight": {"tp": 0}},
        mean_over={"loss": "dp"},
    )
    with pytest.raises(CaptureError) as caught:
        check(definition)
    lines = [line.strip() for line in str(caught.value).splitlines() if "test_refusals.py:" in line]
    fields = ('batch={"x": Batch((4,', 'layouts={"weight"', 'mean_over={"loss": "dp"}')
    assert len(lines) == 3
    for line, field in zip(lines, fields, strict=True):
        assert f": {field}" in line


def test_names_that_no_trace_knows_are_told_with_the_right_ones() -> None:
    from orchestrator.capture import capture

    wrong = tiny(
        mean_over={"los": ("dp",)},
        layouts={"weight": {}, "wieght": {}},
        buckets={"params.flat": Bucket(("params.w",), "dp")},
    )
    with pytest.raises(CaptureError) as caught:
        capture(wrong, jobs=1)
    text = str(caught.value)
    assert "mean_over names 'los', which the step does not return" in text and "write instead: loss" in text
    assert "layouts names 'wieght'" in text and "write instead: weight" in text
    assert "buckets names 'params.flat', which no rank has" in text
    assert "holds 'params.w'" in text and "write instead: params.weight" in text


@pytest.mark.parametrize("method", ["scale", "step", "unscale_"])
def test_every_method_of_a_scaler_that_decides_by_values_is_refused(method: str) -> None:
    """A step may call one of them only: without CUDA the scaler would do nothing, and say nothing."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    given = torch.ones(()) if method == "scale" else optimizer
    with guarded():
        with pytest.raises(Exception) as caught:
            getattr(torch.amp.GradScaler("cuda"), method)(given)
        assert refused(caught.value).message.startswith("GradScaler skips a step")
        getattr(torch.amp.GradScaler("cuda", enabled=False), method)(given)


@pytest.mark.parametrize(
    ("op", "instead"),
    [
        *(
            (f"aten.{n}.default", "the mask or noise as an entry")
            for n in ("multinomial", "log_normal_", "rand_like")
        ),
        *((f"aten.{n}.default", "torch.sort or torch.topk") for n in ("median", "kthvalue", "mode")),
        *((f"aten.{n}.default", "the formula in ops") for n in ("i0", "tril", "sorted")),
    ],
)
def test_advice_for_an_op_without_lowering_is_that_of_its_kind(op: str, instead: str) -> None:
    assert instead_of(op).startswith(instead)
