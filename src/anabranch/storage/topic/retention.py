"""Decides which ledgers may be dropped, by Pulsar's rule: consumed by all durable cursors, and past retention.

| retention | kept after consumption |
|---|---|
| either value 0 | nothing |
| time t, size -1 | ledgers sealed within the last t |
| time -1, size s | the newest ledgers up to about s bytes |
| both set | what satisfies both |
| -1, -1 | everything |

The last ledger always stays, sealed or not, so that the last messages of a terminated topic can be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anabranch.model.position import Position
from anabranch.storage.ledger.ledger_chain import ChainLedger


def ledgers_to_drop(
    ledgers: Sequence[ChainLedger],
    *,
    slowest: Position | None,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """Number of leading ledgers to drop. `slowest`: lowest mark-delete of the durable cursors, if any."""
    remaining = sum(info.bytes for info in ledgers)
    for count, info in enumerate(ledgers[:-1]):
        if not info.sealed:
            return count
        if slowest is not None and slowest < info.end:
            return count
        is_expired = retention_ms >= 0 and now_ms - info.sealed_at_ms >= retention_ms
        is_over_size = retention_bytes >= 0 and remaining >= retention_bytes
        if not (is_expired or is_over_size):
            return count
        remaining -= info.bytes
    return max(len(ledgers) - 1, 0)


def next_drop_ms(ledgers: Sequence[ChainLedger], *, slowest: Position | None, retention_ms: int) -> float:
    """When the next ledger can be dropped by age alone; infinite if age alone is not enough."""
    if len(ledgers) < 2 or not ledgers[0].sealed or (slowest is not None and slowest < ledgers[0].end):
        return math.inf
    return ledgers[0].sealed_at_ms + retention_ms if retention_ms >= 0 else math.inf
