"""Llama 3 405B, two layers, hybrid-sharded: ``replicas`` copies of 64 FSDP shards x 8 tensor parallel."""

from llama import Config
from llama import definition as llama

from orchestrator.capture import Definition


def definition(replicas: int = 2, length: int = 8192, layers: int = 2) -> Definition:
    return llama(
        f"llama3-405b-{layers}l-hsdp-rep{replicas}-tp8-fsdp64",
        Config(dim=16384, ffn_dim=53248, heads=128, kv_heads=8, layers=layers),
        mesh={"rep": replicas, "dp": 64, "tp": 8},
        batch=64 * replicas,
        length=length,
    )
