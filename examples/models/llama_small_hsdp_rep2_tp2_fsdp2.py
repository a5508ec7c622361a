"""A small decoder on 2 replicas of 2 x 2 ranks: gradients are reduce-scattered over dp, then summed over rep.

``full=1`` is the whole step: two microbatches, a symbolic token count, global-norm clipping.
"""

from llama import Config, Training, full_definition
from llama import definition as llama

from orchestrator.capture import Definition


def definition(length: int = 8, layers: int = 1, full: int = 0) -> Definition:
    config = Config(dim=64, ffn_dim=96, layers=layers, heads=4, kv_heads=2, vocab=128)
    mesh = {"rep": 2, "dp": 2, "tp": 2}
    if full:
        training = Training(microbatches=2)
        name = "llama-small-clip-accum-hsdp-rep2-tp2-fsdp2"
        return full_definition(name, config, mesh, batch=8, length=length, training=training)
    return llama("llama-small-hsdp-rep2-tp2-fsdp2", config, mesh, batch=8, length=length)
