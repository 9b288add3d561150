"""The key hash, fast. `anabranch.model.keyhash` is its readable reference; a test compares them."""

from __future__ import annotations

import mmh3

from anabranch.model.keyhash import high16, java_string_hash, low16, masked, partition_of
from anabranch.model.keyhash import key_shared_slot as slot_of_hash

__all__ = ["high16", "java_string_hash", "key_shared_slot", "low16", "masked", "murmur3_32", "partition_of"]


def murmur3_32(data: bytes | str) -> int:
    """The raw hash, unsigned; text is hashed as UTF-8."""
    return mmh3.hash(data, 0, False)


def key_shared_slot(key: bytes) -> int:
    """The Key_Shared slot of a sticky key, 1 … 65535."""
    return slot_of_hash(mmh3.hash(key, 0, False))
