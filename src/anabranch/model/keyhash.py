"""The key hash and the values derived from it. Readable reference of the fast `anabranch.protocol.keyhash`.

MurmurHash3 x86 32-bit, seed 0, of the key's raw bytes (text: UTF-8). One 32-bit result, several views:

| view             | value                         | used by                                                  |
|------------------|-------------------------------|----------------------------------------------------------|
| `masked`         | raw & 0x7fffffff              | partition routing with the Murmur scheme                 |
| `low16`          | raw & 0xffff                  | segment routing (Pulsar 5.0.0-M1, our default); buckets  |
| `high16`         | raw >> 16                     | segment routing of later Pulsar                          |
| `key_shared_slot`| masked mod 65536, 0 becomes 1 | Key_Shared                                               |
| `partition_of`   | masked mod n                  | partitions, segments of a synthetic layout               |
"""

from __future__ import annotations

U32_MASK = 0xFFFFFFFF
RING_SIZE = 1 << 16

_C1 = 0xCC9E2D51
_C2 = 0x1B873593


def murmur3_32(data: bytes) -> int:
    """The raw hash, unsigned. Slow; serving code uses `anabranch.protocol.keyhash`."""
    value = 0
    whole = len(data) & ~3
    for offset in range(0, whole, 4):
        value ^= _mixed(int.from_bytes(data[offset : offset + 4], "little"))
        value = (_rotated(value, 13) * 5 + 0xE6546B64) & U32_MASK
    value ^= _mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & U32_MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & U32_MASK
    return value ^ (value >> 16)


def _mixed(block: int) -> int:
    return (_rotated((block * _C1) & U32_MASK, 15) * _C2) & U32_MASK


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & U32_MASK


def masked(raw: int) -> int:
    return raw & 0x7FFFFFFF


def low16(raw: int) -> int:
    return raw & 0xFFFF


def high16(raw: int) -> int:
    return raw >> 16


def key_shared_slot(raw: int) -> int:
    """1 … 65535. Slot 0 means "no hash" elsewhere and is never assigned to a key."""
    return (raw & 0xFFFF) or 1


def partition_of(raw: int, partitions: int) -> int:
    return (raw & 0x7FFFFFFF) % partitions


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode` without its sign: how Java clients choose a partition by default."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for offset in range(0, len(units), 2):
        value = (31 * value + (units[offset] << 8 | units[offset + 1])) & U32_MASK
    return value & 0x7FFFFFFF
