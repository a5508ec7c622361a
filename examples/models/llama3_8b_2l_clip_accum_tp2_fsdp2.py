"""Llama 3 8B, two layers, with the whole step: two microbatches, a symbolic token count, clipping."""

from llama import Config, Training
from llama import full_definition as llama

from orchestrator.capture import Definition


def definition(length: int = 16, layers: int = 2, microbatches: int = 2) -> Definition:
    return llama(
        "llama3-8b-2l-clip-accum-tp2-fsdp2",
        Config(layers=layers),
        mesh={"dp": 2, "tp": 2},
        batch=2,
        length=length,
        training=Training(microbatches=microbatches),
    )
