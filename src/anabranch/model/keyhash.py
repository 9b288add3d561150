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


def boost_string_hash(data: bytes) -> int:
    """`boost::hash<std::string>` of Boost 1.81 and later, 64 bit, without its sign: how C++, Python and Node.js clients
    choose a partition by default."""
    left = len(data)
    weight = _folded(_GOLDEN, _GOLDEN_SQUARED)
    value = weight ^ left
    offset = 0
    while left >= 8:
        weight = (weight + _GOLDEN) & _U64_MASK
        value ^= _folded(int.from_bytes(data[offset : offset + 8], "little") + weight, _GOLDEN_SQUARED)
        offset, left = offset + 8, left - 8
    weight = (weight + _GOLDEN) & _U64_MASK
    value ^= _folded(_tail(data[offset:]) + weight, _GOLDEN_SQUARED)
    return _folded(value + weight, _GOLDEN_SQUARED) & 0x7FFFFFFF


_U64_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN_SQUARED = 0xDF442D22CE4859B9


def _folded(one: int, other: int) -> int:
    """The two halves of the 128-bit product."""
    product = (one & _U64_MASK) * other
    return (product & _U64_MASK) ^ (product >> 64)


def _tail(rest: bytes) -> int:
    """Up to seven bytes as one number; parts may overlap."""
    count = len(rest)
    if count >= 4:
        return int.from_bytes(rest[:4], "little") | int.from_bytes(rest[-4:], "little") << 8 * (count - 4)
    if not count:
        return 0
    high, middle = count - 1 & 2, count >> 1
    return rest[0] | rest[middle] << 8 * middle | rest[high] << 8 * high


def boost_1_80_string_hash(data: bytes) -> int:
    """`boost::hash<std::string>` of Boost 1.56 to 1.80, 64 bit, without its sign. Characters are signed."""
    value = 0
    for byte in data:
        block = (byte if byte < 128 else byte - 256) * _COMBINE & _U64_MASK
        block = (block ^ block >> 47) * _COMBINE & _U64_MASK
        value = ((value ^ block) * _COMBINE + 0xE6546B64) & _U64_MASK
    return value & 0x7FFFFFFF


_COMBINE = 0xC6A4A7935BD1E995
