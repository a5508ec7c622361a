"""The proof as data: facts, stages, ``proof.json``."""
