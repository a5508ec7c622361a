"""A small decoder whose feed-forward width, 101, neither mesh axis divides: four kinds of rank."""

from llama import Config
from llama import definition as llama

from orchestrator.capture import Definition


def definition(length: int = 8, layers: int = 1) -> Definition:
    config = Config(dim=64, ffn_dim=101, layers=layers, heads=4, kv_heads=2, vocab=96)
    return llama("llama-uneven-tp2-fsdp2", config, mesh={"dp": 2, "tp": 2}, batch=4, length=length)
