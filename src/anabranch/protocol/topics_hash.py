"""The digest of topic names by which clients and brokers find out whether they have the same list."""

from __future__ import annotations

from collections.abc import Iterable

import crc32c


def topics_hash(names: Iterable[str]) -> str:
    """The digest that clients compare: CRC32C of the sorted, comma-joined names, as little-endian hex."""
    ordered = sorted(names, key=lambda name: name.encode("utf-16-be"))
    return int(crc32c.crc32c(",".join(ordered).encode())).to_bytes(4, "little").hex()
