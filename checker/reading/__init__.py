"""Bytes of a stranger to records, or `Malformed`."""
