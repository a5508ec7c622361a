"""Llama 3 8B, two layers, tensor and sequence parallel over 2 ranks, FSDP2 over 2."""

from llama import Config
from llama import definition as llama

from orchestrator.capture import Definition


def definition(length: int = 16, layers: int = 2) -> Definition:
    return llama(
        "llama3-8b-2l-tp2-fsdp2", Config(layers=layers), mesh={"dp": 2, "tp": 2}, batch=2, length=length
    )
