"""Training steps in PyTorch that are parallelised by hand in ordinary ways, all of them right."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.capture import Definition

from . import attention, clipping, layers, losses, replicas

CAPTURED: dict[str, Callable[[], Definition]] = {
    define.__name__: define
    for define in (
        attention.ulysses,
        attention.fused_qkv_by_heads,
        attention.keys_sharded,
        layers.mlp_bias_divided,
        layers.mlp_gathered_weights,
        layers.rms_norm_of_pieces,
        layers.layer_norm_of_pieces,
        layers.sequence_parallel_norm,
        layers.recomputed,
        layers.synchronised_batch_norm,
        replicas.scattered_then_gathered,
        replicas.scaled_before,
        replicas.gathered_losses,
        replicas.accumulated_chunks,
        replicas.accumulated_in_a_buffer,
        replicas.hybrid_by_hand,
        replicas.momentum_shards,
        clipping.clipped_by_norms,
        clipping.clipped_over_pieces,
        clipping.clipped_elementwise,
        losses.gathered_logits,
        losses.log_sum_exp_of_pieces,
        losses.embedding_by_one_hot,
        losses.embedding_columns,
        losses.tokens_counted,
        losses.tokens_weighted_after,
        losses.smoothed_labels,
        losses.contrastive,
        losses.dense_experts,
    )
}
#: Those that are right and not proved, and why.
UNPROVED: dict[str, str] = {}
