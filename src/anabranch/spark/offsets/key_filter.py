"""Which keys a query wants: a set of keys, or parts of the hash ring. Tells which segments can contain them and which
rows match. It replaces filter pushdown, which Spark does not offer to streams and gets wrong for batches.

Rows without a key match no key and no part of the ring, so a query with a filter does not get them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anabranch.model.keyhash import RING_SIZE, murmur3_32
from anabranch.model.routing import RingHash

Span = tuple[int, int]
"""First and last ring position, both included."""


@dataclass(frozen=True, slots=True)
class KeyFilter:
    keys: frozenset[bytes] | None = None  # None: any
    spans: tuple[Span, ...] | None = None

    @property
    def is_all(self) -> bool:
        return self.keys is None and self.spans is None

    def can_be_in(self, span: Span, ring_hash: RingHash) -> bool:
        """Could a segment of this hash range have a wanted row?"""
        if self.spans is not None and not any(low <= span[1] and span[0] <= high for low, high in self.spans):
            return False
        if self.keys is None:
            return True
        return any(span[0] <= ring_hash.ring_position(murmur3_32(key)) <= span[1] for key in self.keys)

    def mask(self, keys: Any, ring_hash: RingHash) -> Any:
        """Per row of a binary Arrow array of keys: is it wanted?"""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from anabranch.protocol import codec

        found = keys.is_valid()
        if self.keys is not None:
            found = pc.and_(found, pc.is_in(keys, value_set=pa.array(sorted(self.keys), keys.type)))
        if self.spans is not None:
            raw = np.asarray(codec.key_hashes(keys))
            ring = raw & 0xFFFF if ring_hash is RingHash.LOW16 else raw >> 16
            inside = np.zeros(len(ring), bool)
            for low, high in self.spans:
                inside |= (ring >= low) & (ring <= high)
            found = pc.and_(found, pa.array(inside))
        return found


EVERYTHING = KeyFilter()


def read_keys(text: str) -> frozenset[bytes]:
    """`a,b,c`, or a JSON list of texts where keys have commas in them; ValueError for anything else."""
    if text.lstrip().startswith("["):
        given = json.loads(text)
        if not all(isinstance(one, str) for one in given):
            raise ValueError("keys are texts")
    else:
        given = [one.strip() for one in text.split(",") if one.strip()]
    if not given:
        raise ValueError("no key is given")
    return frozenset(one.encode() for one in given)


def read_spans(text: str) -> tuple[Span, ...]:
    """`0000-7fff`, several with commas: hexadecimal, both ends included; ValueError for anything else."""
    return tuple(_joined(sorted(_span(one) for one in text.split(","))))


def _span(text: str) -> Span:
    low, dash, high = text.strip().partition("-")
    span = int(low, 16), int(high, 16)
    if not dash or not 0 <= span[0] <= span[1] < RING_SIZE:
        raise ValueError(f"{text!r} is no part of the ring")
    return span


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Ascending ones, as few as possible."""
    found: list[Span] = []
    for low, high in spans:
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found
