"""Training programs that were written without a look at the prover: right ones, each with a wrong twin."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.capture import Definition

from . import by_hand, megatron, own_models

#: ``define(True)`` is right, ``define(False)`` has one mistake.
FRONT: dict[str, Callable[[bool], Definition]] = {
    define.__name__: define
    for define in (
        own_models.minigpt_ddp,
        own_models.llama_sp_fsdp,
        own_models.convnet_ddp,
        megatron.megatron_gpt,
        megatron.megatron_gpt_sequence,
        by_hand.ulysses_separate,
        by_hand.flat_adam,
        by_hand.accumulate_and_clip,
        by_hand.lora_tp,
        by_hand.mla_tp,
        by_hand.experts_masked,
    )
}
#: Those that are right and not proved, and why.
UNPROVED = {
    "megatron_gpt": "the loss looks up logits before it subtracts their log-sum-exp; gradients are proved",
    "megatron_gpt_sequence": "as megatron_gpt",
}
