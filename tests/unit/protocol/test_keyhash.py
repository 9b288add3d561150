"""The key hash against vectors computed with Java's classes."""

from __future__ import annotations

import pytest

from anabranch.model import keyhash as plain
from anabranch.protocol import keyhash as fast

# key, raw, masked, masked mod 4, masked mod 10, Key_Shared slot
VECTORS = [
    (b"", 0x00000000, 0, 0, 0, 1),
    (b"a", 0x3C2569B2, 1009084850, 2, 0, 27058),
    (b"key", 0xE29C6A44, 1654417988, 0, 8, 27204),
    (b"key-0", 0xE337F8BF, 1664612543, 3, 3, 63679),
    (b"key-1", 0x98B115A0, 414258592, 0, 2, 5536),
    (b"hello", 0x248BFA47, 613153351, 3, 1, 64071),
    (b"my-key", 0x6DF0B931, 1844492593, 1, 3, 47409),
    (b"orders-42", 0xC41FC022, 1142931490, 2, 0, 49186),
    ("éè".encode(), 0x3A6DF1E4, 980283876, 0, 6, 61924),
    ("日本語".encode(), 0xA5A47297, 631534231, 3, 1, 29335),
    ("order-😀".encode(), 0x68AD7F13, 1756200723, 3, 3, 32531),
    (b"0123456789abcdef", 0x36C7E0DF, 919068895, 3, 5, 57567),
    (b"user-1", 0xF8A28763, 2023917411, 3, 1, 34659),
    (b"user-2", 0xDE9747CB, 1586972619, 3, 9, 18379),
    (b"user-3", 0x2B6266FB, 727869179, 3, 9, 26363),
    (b"NONE_KEY", 0x9E15BEA3, 504741539, 3, 9, 48803),
    (b"\x00", 0x514E28B7, 1364076727, 3, 7, 10423),
    (b"\xff\xfe\xfd", 0xD2BEF2DC, 1388245724, 0, 4, 62172),
]


@pytest.mark.parametrize(("key", "raw", "masked", "mod_4", "mod_10", "slot"), VECTORS)
def test_vectors(key: bytes, raw: int, masked: int, mod_4: int, mod_10: int, slot: int) -> None:
    assert plain.murmur3_32(key) == fast.murmur3_32(key) == raw
    assert plain.masked(raw) == masked
    assert plain.high16(raw) == raw >> 16
    assert plain.low16(raw) == int(f"{raw:08x}"[4:], 16)
    assert plain.partition_of(raw, 4) == mod_4
    assert plain.partition_of(raw, 10) == mod_10
    assert plain.key_shared_slot(raw) == fast.key_shared_slot(key) == slot


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("key", 106079), ("my-key", 1086286526), ("日本語", 25921943)])
def test_java_string_hash(text: str, expected: int) -> None:
    assert plain.java_string_hash(text) == expected


def test_java_string_hash_counts_surrogate_pairs_as_two() -> None:
    # Java: "😀".hashCode() = 31 * 0xD83D + 0xDE00
    assert plain.java_string_hash("😀") == 31 * 0xD83D + 0xDE00
