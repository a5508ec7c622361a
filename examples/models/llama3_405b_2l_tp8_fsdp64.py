"""Llama 3 405B, two layers, 512 ranks: tensor and sequence parallel over 8, FSDP2 over 64.

The 16032 vocabulary rows of a tensor-parallel rank do not divide over 64: the last data-parallel rank owns
219 of them, padded to 251.
"""

from llama import Config
from llama import definition as llama

from orchestrator.capture import Definition


def definition(length: int = 8192, layers: int = 2) -> Definition:
    config = Config(dim=16384, ffn_dim=53248, heads=128, kv_heads=8, layers=layers)
    return llama("llama3-405b-2l-tp8-fsdp64", config, mesh={"dp": 64, "tp": 8}, batch=64, length=length)
