"""Many messages at once: batches to columns and back. What Spark and the SDK's bulk calls live on. Knows bytes and
columns; nothing of connections or topics.

| name                       | does                                                                                   |
|----------------------------|----------------------------------------------------------------------------------------|
| `decode(bodies)`           | opened bodies of batches → `Columns`, whose buffers Arrow takes as they are            |
| `encode(columns, rows)`    | some rows → one body                                                                   |
| `read(entries)`            | whole entries (metadata, checksum, compression) → `Run`: columns, and what entries say |
| `write(values, keys, …)`   | lists or Arrow arrays → entries ready for SEND, cut into batches, many segments at once |
| `route(keys, …)`           | which segment each row belongs to                                                      |
| `key_hashes(keys)`         | murmur3-32 of a column of keys                                                         |
| `IMPLEMENTATION`           | `"native"` (C, built by `pip install` where a compiler is) or `"python"`, its twin     |

Both implementations give the same bytes and raise the same errors;
tests/property/protocol/test_codec_native.py compares them.
pyarrow is needed only by those who pass or ask for Arrow. `ANABRANCH_CODEC=python` in the environment chooses the twin
where both are there; so does `ANABRANCH_NATIVE=off`, which is for all parts in C.
"""

from __future__ import annotations

from anabranch.protocol.codec.column import BadColumn
from anabranch.protocol.codec.columns import NO_SEQUENCE, Body, Columns, Properties, Texts
from anabranch.protocol.codec.core import IMPLEMENTATION, decode, encode
from anabranch.protocol.codec.reading import Opener, read
from anabranch.protocol.codec.run import Run
from anabranch.protocol.codec.writing import Packed, key_hashes, route, write

__all__ = [
    "BadColumn",
    "Body",
    "Columns",
    "IMPLEMENTATION",
    "NO_SEQUENCE",
    "Opener",
    "Packed",
    "Properties",
    "Run",
    "Texts",
    "decode",
    "encode",
    "key_hashes",
    "read",
    "route",
    "write",
]
