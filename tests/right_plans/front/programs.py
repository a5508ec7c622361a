"""Training programs that were written without a look at the prover: right ones, each with a wrong twin."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.capture import Definition

from . import by_hand, experts, fields, many_habits, megatron, more_models, own_models, preferences

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
        many_habits.gpt_of_many_habits,
        fields.contrastive,
        fields.tables_by_rank,
        fields.switch_experts,
        fields.denoiser,
        fields.clipped_policy,
        experts.gshard_two_choices,
        more_models.adagrad_ddp,
        more_models.muon_by_hand,
        more_models.context_parallel,
        more_models.distilled_ema,
        more_models.vision_tp,
        more_models.zero3_by_hand,
        more_models.masked_tokens,
        more_models.linear_attention,
        more_models.recurrent_ddp,
        more_models.fsdp_microbatches,
        preferences.preferred,
        preferences.windows,
        preferences.rewards_so_far,
    )
}
#: Those that are right and not proved, and why.
UNPROVED: dict[str, str] = {}
