"""From a topic's name to its slot: 256 equal ranges of the CRC-32 that Pulsar's bundles use."""

from __future__ import annotations

import re
import zlib

from anabranch.model.errors import BadName

SLOTS = 256
_SHIFT = 24
_BUNDLE = re.compile(r"0x([0-9a-fA-F]{8})_0x([0-9a-fA-F]{8})")


def slot_of(topic: str) -> int:
    """`topic`: the full name, with the partition."""
    return zlib.crc32(topic.encode()) >> _SHIFT


def slots_of_bundle(bundle: str) -> range:
    """Slots that overlap a range like `0x00000000_0x40000000`. The end is exclusive, except 0xffffffff."""
    found = _BUNDLE.fullmatch(bundle)
    if found is None:
        raise BadName(f"{bundle!r} is not a bundle like 0x00000000_0xffffffff")
    low, high = (int(text, 16) for text in found.groups())
    if low >= high:
        raise BadName(f"bundle {bundle!r} is empty")
    last = high if high == 0xFFFF_FFFF else high - 1
    return range(low >> _SHIFT, (last >> _SHIFT) + 1)
