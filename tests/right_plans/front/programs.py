"""Training programs that were written without a look at the prover: right ones, each with a wrong twin."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.capture import Definition

from . import (
    by_hand,
    experts,
    fields,
    habits_of_megatron,
    kept,
    many_habits,
    megatron,
    more_models,
    own_models,
    pictures,
    preferences,
    sequences,
    shards,
    tokens,
    vocabularies,
    whole_batches,
)

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
        sequences.fused_grouped_heads,
        sequences.ring_attention,
        sequences.causal_ring,
        sequences.ulysses_fused,
        sequences.sequence_norms,
        tokens.weighted_tokens,
        tokens.smoothed_tokens,
        tokens.tied_words,
        tokens.counted_microbatches,
        tokens.taught,
        shards.zero2_clipped,
        shards.zero3_replicas,
        shards.hooked_buckets,
        shards.adapters_sharded,
        shards.factored_moments,
        shards.three_axes,
        shards.few_rows,
        pictures.pictures_sharded,
        pictures.statistics_over_ranks,
        pictures.neighbours_texts,
        pictures.two_views,
        pictures.placed_by_hand,
        habits_of_megatron.main_gradients,
        habits_of_megatron.trust_ratios,
        habits_of_megatron.chunked_loss,
        whole_batches.barlow_twins,
        whole_batches.sharpness_aware,
        whole_batches.grouped_advantages,
        whole_batches.lengths_of_rows,
        vocabularies.own_labels,
        kept.rotations_kept,
        kept.relative_distances,
        kept.owned_whole,
    )
}
#: Those that are right and not proved, and why.
UNPROVED: dict[str, str] = {
    "ring_attention": "laws of exp inside sums: blocks are merged by the logarithms of their sums",
    "causal_ring": "laws of exp inside sums: blocks are merged by running maxima",
    "smoothed_tokens": "1 - s and s times the logarithm of the normaliser are added up in other terms",
    "neighbours_texts": "a factor that is -1 or 1 by position, of which each rank's block has one",
}
