"""Positions in a topic: (ledger, entry) pairs that only grow.

A position names one entry. Order is lexicographic, which is append order, because ledger ids only grow within a topic.
"""

from __future__ import annotations

from typing import NamedTuple

LONG_MAX = (1 << 63) - 1


class Position(NamedTuple):
    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST = Position(-1, -1)
"""Before everything; also "no position" (empty topic, duplicate receipt)."""

LATEST = Position(LONG_MAX, LONG_MAX)
"""After everything that exists at the time of the request."""
