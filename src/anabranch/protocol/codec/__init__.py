"""Many messages at once: batches to columns and back, for Spark and the bulk calls of the SDK.

Does not know connections or topics.

| module | what it is |
|---|---|
| `columns` | messages as columns: buffers in Arrow's layout |
| `column` | one input column: a list or an Arrow array |
| `rows` | messages of one decoded body as Python lists |
| `run` | result of `read`: columns, and facts of each entry |
| `reading` | `read`: entries to columns |
| `writing` | `write` and `route`: columns to entries |
| `partitions` | partition numbers by the hashes of v4 clients |
| `core` | selects the implementation of the inner loops |
| `python` | decoding and encoding of bodies in Python, the reference |
| `packing` | rows to bodies and segments in Python, the reference |
| `vectors` | decoding by whole columns with numpy and Arrow |

Functions:

- `decode(bodies)`: decompressed bodies of batches to `Columns`, whose buffers Arrow takes as they are
- `encode(columns, rows)`: some rows to one body
- `read(entries)`: whole entries (metadata, checksum, compression) to a `Run`
- `write(values, keys, …)`: lists or Arrow arrays to entries ready for SEND, divided into batches, for many segments
- `route(keys, …)`: the segment of each row
- `key_hashes(keys)`: murmur3-32 of a column of keys
- `IMPLEMENTATION`: `"native"` (C, built by `pip install` if there is a compiler) or `"python"`

Both implementations give the same bytes and raise the same errors; tests/property/protocol/test_codec_native.py
compares them. pyarrow is needed only to pass or get Arrow data. `ANABRANCH_CODEC=python` in the environment selects
Python for the codec, `ANABRANCH_NATIVE=off` for all parts in C.
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
