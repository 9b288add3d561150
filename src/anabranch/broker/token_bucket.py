"""Token buckets. Pure: time is an argument (monotonic seconds).

A bucket holds at most one period's amount. A request is granted whole while the bucket holds anything, even if it goes
into debt, because an entry cannot be cut. Waiting pays the debt off, so the average rate is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SUBSCRIBERS_MAX = 10_000
"""Consumers whose subscribe rate is tracked; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages and bytes per period; 0 or less means no limit."""

    messages: int = 0
    bytes: int = 0
    period_seconds: float = 1.0

    @property
    def is_limited(self) -> bool:
        return self.messages > 0 or self.bytes > 0


NO_LIMIT = Rate()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be read now without waiting; None means no limit."""

    messages: int | None
    bytes: int | None

    def both(self, other: Allowance) -> Allowance:
        return Allowance(_smaller(self.messages, other.messages), _smaller(self.bytes, other.bytes))


UNLIMITED = Allowance(None, None)


class TokenBucket:
    """One dimension. Starts full."""

    __slots__ = ("_at", "_per_second", "_size", "tokens")

    def __init__(self, amount: int, period_seconds: float, now: float) -> None:
        assert amount > 0
        assert period_seconds > 0
        self._size = float(amount)
        self._per_second = amount / period_seconds
        self._at = now
        self.tokens = self._size

    def refill(self, now: float) -> None:
        if now > self._at:
            self.tokens = min(self._size, self.tokens + (now - self._at) * self._per_second)
            self._at = now

    def seconds_short(self) -> float:
        """Seconds until the bucket holds one token (or one period's amount, if that is less)."""
        wanted = min(1.0, self._size)
        return 0.0 if self.tokens >= wanted else (wanted - self.tokens) / self._per_second


class RateLimiter:
    """Messages and bytes together. `times` counts how often a caller had to wait."""

    __slots__ = ("_bytes", "_messages", "rate", "times")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self.times = 0
        period = rate.period_seconds
        self._messages = TokenBucket(rate.messages, period, now) if rate.messages > 0 else None
        self._bytes = TokenBucket(rate.bytes, period, now) if rate.bytes > 0 else None

    def _buckets(self) -> Iterable[TokenBucket]:
        return (bucket for bucket in (self._messages, self._bytes) if bucket is not None)

    def wait_seconds(self, now: float) -> float:
        """Seconds to wait before the next `take`; 0 if none."""
        short = 0.0
        for bucket in self._buckets():
            bucket.refill(now)
            short = max(short, bucket.seconds_short())
        return short

    def take(self, messages: int, size: int) -> None:
        if self._messages is not None:
            self._messages.tokens -= messages
        if self._bytes is not None:
            self._bytes.tokens -= size

    def allowance(self) -> Allowance:
        """At least one message; what exceeds the tokens becomes debt."""
        messages = None if self._messages is None else max(1, int(self._messages.tokens))
        return Allowance(messages, None if self._bytes is None else max(1, int(self._bytes.tokens)))


class SubscribeRates:
    """Limits how often each consumer may subscribe; a consumer is identified by its label."""

    def __init__(self) -> None:
        self._rate = NO_LIMIT
        self._known: dict[str, RateLimiter] = {}

    def change(self, rate: Rate) -> None:
        if rate != self._rate:
            self._rate = rate
            self._known.clear()

    def admits(self, label: str, now: float) -> bool:
        if not self._rate.is_limited:
            return True
        limiter = self._known.pop(label, None) or RateLimiter(self._rate, now)
        self._known[label] = limiter  # the dict stays in order of last use
        if len(self._known) > SUBSCRIBERS_MAX:
            del self._known[next(iter(self._known))]
        if limiter.wait_seconds(now) > 0:
            return False
        limiter.take(1, 0)
        return True


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
