"""Which parts of this broker run C code, for the log line of its start. The codec of many messages is the client's."""

from __future__ import annotations

from anabranch.protocol.native import NATIVE
from anabranch.storage.ledger import record_runs


def native_code() -> str:
    """`in use`, or the parts that run the Python code instead."""
    parts = {"protocol": NATIVE is not None, "storage": record_runs.NATIVE is not None}
    missing = ", ".join(name for name, is_native in parts.items() if not is_native)
    return f"not in use for {missing}" if missing else "in use"
