"""Partition numbers of rows by the hashes of v4 clients (`model.partition_hash`), whose input is the text of the key.

Keys repeat, so each one is hashed once per call.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from anabranch.model.partition_hash import PartitionHash
from anabranch.protocol.codec.column import BadColumn, Column, is_arrow, rows_of


def has_bytes(keys: Column) -> bool:
    """Whether some keys are bytes, which v4 clients hash as base64 text."""
    if is_arrow(keys):
        return "binary" in str(keys.type)
    return any(isinstance(one, bytes | bytearray | memoryview) for one in keys)


def partition_numbers(
    keys: Column, partition_hash: PartitionHash, count: int, first: int, sequence_ids: Sequence[int] | None
) -> memoryview:
    """The partition of each row; rows without a key by their sequence id."""
    found, known = array("i"), dict[str | bytes, int]()
    for row, key in enumerate(rows_of(keys, "keys")):
        if key is None:
            found.append((first + row if sequence_ids is None else sequence_ids[row]) % count)
            continue
        if not isinstance(key, str | bytes | bytearray | memoryview):
            raise BadColumn(f"key of row {row} is {type(key).__name__}, not text or bytes")
        wire = key if isinstance(key, str) else bytes(key)
        number = known.get(wire)
        if number is None:
            number = known[wire] = partition_hash.partition_of(wire, count)
        found.append(number)
    return memoryview(found)
