"""Backlog quotas: decides whether a backlog is too large or too old, and what follows. Pure.

Sizes inside a ledger are interpolated by entries: exact at ledger borders, approximate in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anabranch.broker.catalog.policies import Quota, QuotaPolicy
from anabranch.model.position import Position
from anabranch.storage.ledger.ledger_chain import ChainLedger

EVICT_TO = 0.9  # of the limit, so that the next message does not evict again


@dataclass(frozen=True, slots=True)
class Blocked:
    """Producers are closed and refused until the backlog is below its quota."""

    policy: QuotaPolicy
    reason: str


@dataclass(frozen=True, slots=True)
class EvictUpTo:
    position: Position


@dataclass(frozen=True, slots=True)
class EvictOlderThan:
    seconds: int


QuotaDecision = Blocked | EvictUpTo | EvictOlderThan | None


def bytes_after(ledgers: Iterable[ChainLedger], position: Position) -> int:
    """Stored bytes of the entries after a position."""
    total = 0
    for info in ledgers:
        if info.id > position.ledger:
            total += info.bytes
        elif info.id == position.ledger and info.entries:
            total += info.bytes * max(info.entries - position.entry - 1, 0) // info.entries
    return total


def position_leaving(ledgers: Sequence[ChainLedger], bytes_left: int) -> Position | None:
    """The first position after which at most `bytes_left` bytes lie; None if nothing must be evicted."""
    excess = sum(info.bytes for info in ledgers) - bytes_left
    if excess <= 0:
        return None
    for info in ledgers:
        if excess < info.bytes:
            return Position(info.id, -(-excess * info.entries // info.bytes) - 1)
        excess -= info.bytes
        if excess <= 0:
            return info.end
    return ledgers[-1].end


def check_size(quota: Quota, ledgers: Sequence[ChainLedger], slowest: Position) -> QuotaDecision:
    """`slowest`: lowest mark-delete position of the subscriptions."""
    used = bytes_after(ledgers, slowest)
    if used <= quota.limit:
        return None
    if quota.policy is not QuotaPolicy.EVICT:
        return Blocked(quota.policy, f"backlog of {used} bytes exceeds the quota of {quota.limit}")
    target = position_leaving(ledgers, int(quota.limit * EVICT_TO))
    return None if target is None else EvictUpTo(target)


def check_age(quota: Quota, oldest_age_ms: int) -> QuotaDecision:
    if oldest_age_ms <= quota.limit * 1000:
        return None
    if quota.policy is QuotaPolicy.EVICT:
        return EvictOlderThan(quota.limit)
    return Blocked(quota.policy, f"oldest message of the backlog is older than the quota of {quota.limit} s")
