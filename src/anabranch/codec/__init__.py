"""Batches to columns and back: what Spark and the SDK's bulk calls live on.

`decode(bodies) -> Columns` and `encode(columns, rows) -> bytes` do the same whoever provides them; `IMPLEMENTATION`
says who. Bodies are opened already (decompressed); entries, checksums and compression are others' work.
"""

from __future__ import annotations

from anabranch.codec.columns import NO_SEQUENCE, Body, Columns, Properties, Texts
from anabranch.codec.python import decode, encode

IMPLEMENTATION = "python"

__all__ = ["IMPLEMENTATION", "NO_SEQUENCE", "Body", "Columns", "Properties", "Texts", "decode", "encode"]
