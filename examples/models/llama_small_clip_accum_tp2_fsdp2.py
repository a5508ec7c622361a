"""A small decoder with the whole step: two microbatches, a symbolic token count, global-norm clipping.

``whole=1`` compares with a specification that takes both microbatches as one batch; with ``padding=0`` every
token counts.
"""

from llama import Config, Training
from llama import full_definition as llama

from orchestrator.capture import Definition


def definition(
    length: int = 8, layers: int = 1, microbatches: int = 2, whole: int = 0, padding: int = 1
) -> Definition:
    config = Config(dim=64, ffn_dim=96, layers=layers, heads=4, kv_heads=2, vocab=128)
    training = Training(microbatches=microbatches, whole=bool(whole), padding=bool(padding))
    name = "llama-small-clip-accum" + "-whole" * bool(whole) + "-tp2-fsdp2"
    return llama(name, config, mesh={"dp": 2, "tp": 2}, batch=4, length=length, training=training)
