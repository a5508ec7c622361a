"""Tensors that only a proof has: partial results under names of their own."""
