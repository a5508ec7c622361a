"""Part 16: pipelines as people write them by hand, captured; and mistakes that are refused or UNSAFE."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, CaptureError, Definition
from tests.schedule_plans import reason

from . import pipelines, tied_stages, virtual_stages
from .kit import captured, part
from .pipelines import COUNT, DIM, MLP, Batches, Block, Stage
from .virtual_stages import Loss, loss_of_all, loss_of_valid_rows

ROOT = Path(__file__).resolve().parents[2]
ROWS = 2 * COUNT
Run = Callable[[Any, Batches, str], dict[str, Tensor]]
TWO = (("0", "1"), ("2", "3"))


@dataclass(frozen=True)
class Style:
    """One way to run a pipeline, and what becomes of each of its mistakes: an output that is REFUTED.

    ``unsafe`` and ``refused`` have the words by which the schedule, or the capture, says what is wrong.
    """

    run: Run
    wrong: Mapping[str, str]
    parts: Sequence[Sequence[str]] = TWO
    replicas: int = 1
    unsafe: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loss: Loss = loss_of_all
    alone: Callable[[Any], dict[str, Tensor]] | None = None
    wrap: Callable[[Stage], Stage] = lambda stage: stage
    one_loss: bool = False
    words: bool = False

    def definition(self, wrong: str = "") -> Definition:
        mesh = {"pp": len(self.parts)} | ({"dp": self.replicas} if self.replicas > 1 else {})
        shard = {"dp": 0} if self.replicas > 1 else {}
        rows = ROWS * self.replicas
        return Definition(
            name="breakages-pipeline",
            mesh=mesh,
            build=self._build,
            parallelize=self._parallelize,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
            step=self._step,
            parallel_step=functools.partial(self._stage_step, wrong=wrong),
            batch=_words(rows) if self.words else _numbers(rows, shard, self.loss is loss_of_valid_rows),
            mean_over={"loss": ("dp",)} if self.replicas > 1 and not self.one_loss else {},
        )

    def _build(self) -> nn.Module:
        blocks = {name: Block() for name in sorted({n for names in self.parts for n in names})}
        if self.words:
            return tied_stages.Tied(nn.Embedding(tied_stages.VOCABULARY, DIM), blocks)
        return MLP(blocks)

    def _parallelize(self, model: Any, mesh: DeviceMesh) -> nn.Module:
        kind = tied_stages.TiedStage if self.words else Stage
        return self.wrap(kind(model, mesh, self.parts[mesh.get_local_rank("pp")]))

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        if self.words:
            loss = tied_stages.cross_entropy(model(batch["tokens"]), batch["labels"])
        else:
            out = model(batch["x"])
            out = out + batch["x"] if self.run is virtual_stages.input_to_the_end else out
            loss = self.loss(out, batch)
        loss.backward()
        more = self.alone(model.parameters()) if self.alone else {}
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss} | more

    def _stage_step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, *, wrong: str
    ) -> dict[str, Tensor]:
        results = self.run(model, batch, wrong)
        optimizer.step()
        optimizer.zero_grad()
        return results


def _numbers(rows: int, shard: Mapping[str, int], masked: bool) -> dict[str, Batch]:
    entry = Batch((rows, DIM), shard=shard)
    valid = {"valid": Batch((rows,), torch.bool, shard)} if masked else {}
    return {"x": entry, "y": entry} | valid


def _words(rows: int) -> dict[str, Batch]:
    entry = Batch((rows, tied_stages.LENGTH), torch.int64, bounds=(0, tied_stages.VOCABULARY))
    return {"tokens": entry, "labels": entry}


THREE = (("0",), ("1",), ("2", "3"))
#: By name. A pattern of the output that is REFUTED, or the words that say why it is UNSAFE or refused.
STYLES: dict[str, Style] = {
    "1F1B with a warm-up loop": Style(
        pipelines.one_forward_one_backward,
        {
            "last in, first out": "params.blocks.0.*",
            "labels in another order": "loss",
            "gradient of nothing handed on": "params.blocks.0.*",
            "gradients cleared after every microbatch": "params.blocks.*",
        },
        (("0",), ("1",), ("2",)),
        unsafe={"one communicator for both ways": "wait for one another"},
        refused={"last gradient not sent": "which sends", "sent in another type": "is received as"},
    ),
    "sends and receives in one batch": Style(
        pipelines.both_ways,
        {"gradient of the microbatch before": "params.blocks.0.*"},
        unsafe={"both send, then both receive": "wait for one another"},
    ),
    "microbatches in reverse order": Style(pipelines.in_reverse, {"labels in the other order": "loss"}),
    "last microbatch back first": Style(
        pipelines.backward_in_reverse, {"first stage takes them forwards": "params.blocks.0.*"}
    ),
    "activations checkpointed": Style(pipelines.computed_again, {}),
    "forward pass without gradients, and again": Style(
        pipelines.kept_by_hand, {"computed again from the first microbatch": "*"}
    ),
    "next microbatch received in advance": Style(
        pipelines.in_advance,
        {},
        refused={"read while in flight": "before", "one buffer for all": "before"},
    ),
    "replicas by DistributedDataParallel": Style(
        pipelines.replicas_by_ddp,
        {"never reduced": "params.blocks.*"},
        replicas=2,
        wrap=pipelines.wrapped_in_ddp,
    ),
    "gradients in buffers of their own": Style(
        pipelines.kept_in_buffers,
        {
            "buffer overwritten": "params.blocks.*",
            "last microbatch left out": "params.blocks.*",
            "not divided by the count": "params.blocks.*",
        },
    ),
    "microbatches of other sizes": Style(pipelines.unequal, {"every microbatch counts the same": "loss"}),
    "more layers on the last stage": Style(pipelines.one_forward_one_backward, {}, THREE),
    "two parts on each rank": Style(
        virtual_stages.looped,
        {"parts of a rank exchanged": "loss"},
        (("0", "2"), ("1", "3")),
        unsafe={"one communicator for both ways of two parts": "wait for one another"},
    ),
    "parts in a V": Style(
        virtual_stages.in_a_v,
        {
            "what the part before handed on is left out": "loss",
            "gradient of the last part": "params.blocks.0.*",
        },
        (("0", "3"), ("1", "2")),
    ),
    "input handed on to the end": Style(
        virtual_stages.input_to_the_end, {"both messages exchanged": "loss"}, THREE
    ),
    "clipping over stages": Style(
        virtual_stages.clipped,
        {
            "norm of the own stage": "grad_norm",
            "roots added, not squares": "grad_norm",
            "largest norm of a stage": "grad_norm",
        },
        alone=virtual_stages.clip_alone,
    ),
    "norm and loss over two communicators": Style(
        virtual_stages.norm_and_loss,
        {},
        unsafe={"two communicators in crossed order": "wait for one another"},
        alone=virtual_stages.clip_alone,
    ),
    "loss told to all stages": Style(
        virtual_stages.loss_for_all,
        {"mean over the stages": "loss", "told by the first stage": "loss"},
        THREE,
    ),
    "replicas averaged by hand": Style(
        virtual_stages.averaged_over_replicas,
        {
            "over the stages instead": "params.blocks.*",
            "not at all on the last stage": "params.blocks.2.*",
            "divided twice": "params.blocks.*",
            "no step on the first stage": "params.blocks.0.*",
        },
        replicas=2,
    ),
    "loss over all valid rows": Style(
        virtual_stages.valid_rows,
        {
            "rows of the own replica counted": "loss",
            "each microbatch by its own count": "loss",
            "mean over replicas": "params.blocks.*",
        },
        replicas=2,
        loss=loss_of_valid_rows,
        one_loss=True,
    ),
    "embedding tied over two stages": Style(
        tied_stages.exchanged,
        {
            "not exchanged": "params.embed.weight",
            "the mean of both": "params.embed.weight",
            "the last stage's for both": "params.embed.weight",
        },
        words=True,
    ),
    "embedding tied over the ends of four stages": Style(
        tied_stages.exchanged,
        {"not exchanged with the other end": "params.embed.weight"},
        (("0",), ("1",), ("2",), ("3",)),
        words=True,
    ),
}
PART = part(
    "pipelines as people write them",
    {name: (style.definition, style.wrong) for name, style in STYLES.items()},
)


def refusals() -> Iterator[tuple[str, str, str, str]]:
    """Style, mistake, what becomes of it, and the words by which that is said."""
    for name, style in STYLES.items():
        for mistake in (*style.refused, *style.unsafe):
            yield name, mistake, *told(style, mistake)


def told(style: Style, mistake: str) -> tuple[str, str]:
    """What becomes of a mistake that is refused or UNSAFE, and the first line of why."""
    if mistake in style.unsafe:
        return "UNSAFE", reason(captured(style.definition(mistake)))
    with pytest.raises(CaptureError) as caught:
        captured(style.definition(mistake))
    message = re.sub(r"\.py:\d+", ".py", caught.value.message)  # lines of this code move
    return "refused", message.replace(f"{ROOT}/", "")  # as they are shown to who runs it here
