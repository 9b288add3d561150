"""Dispatch rate of one subscription: how much it may read now, and when to continue.

Two limits apply: the topic's, which all its subscriptions share, and the subscription's own. Only delivered messages
are charged. A subscription without a limit has no limiter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.broker.token_bucket import UNLIMITED, Allowance, RateLimiter
from anabranch.runtime.clock import Clock, Timer
from anabranch.storage.topic.topic_log import StoredEntry


def first_entries(entries: list[StoredEntry], messages_max: int) -> list[StoredEntry]:
    """The first entries with `messages_max` messages in total; at least one entry, and the last one complete."""
    messages = 0
    for index, entry in enumerate(entries):
        messages += entry.messages
        if messages >= messages_max:
            return entries[: index + 1]
    return entries


class DispatchRateLimiter:
    def __init__(self, limiters: Sequence[RateLimiter], clock: Clock, resume: Callable[[], None]) -> None:
        self.limiters = tuple(limiters)
        self._clock = clock
        self._resume = resume
        self._timer: Timer | None = None
        self._messages: int | None = None
        self._bytes = 0

    def charge(self, messages_out: int, bytes_out: int) -> None:
        """Charge the growth of the subscription's totals since the last call; the first call sets the base."""
        if self._messages is not None and messages_out > self._messages:
            for limiter in self.limiters:
                limiter.take(messages_out - self._messages, bytes_out - self._bytes)
        self._messages, self._bytes = messages_out, bytes_out

    def allowance(self) -> Allowance | None:
        """What may be read now; None if nothing, and `resume` is called later."""
        now = self._clock.monotonic()
        allowed, wait = UNLIMITED, 0.0
        for limiter in self.limiters:
            short = limiter.wait_seconds(now)
            if short > 0 and self._timer is None:
                limiter.times += 1
            wait = max(wait, short)
            allowed = allowed.both(limiter.allowance())
        if wait <= 0:
            return allowed
        if self._timer is None:
            self._timer = self._clock.call_later(wait + 0.001, self._over)
        return None

    def _over(self) -> None:
        self._timer = None
        self._resume()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
