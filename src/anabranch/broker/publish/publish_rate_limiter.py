"""The publish rate of one topic: producers wait in line while its bucket is in debt. Knows a clock, no log.

A producer's SENDs wait in its own `held` queue, so their order, the connection's bound on held bytes and a clean close
need nothing new. A topic without a rate has no gate.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.token_bucket import Rate, RateLimiter
from anabranch.runtime.clock import Clock, Timer


class PublishRateLimiter:
    def __init__(self, rate: Rate, clock: Clock, release: Callable[[Producer], None]) -> None:
        """`release` lets a producer go on; it asks `admits` for each entry."""
        self._clock = clock
        self._release = release
        self._limiter = RateLimiter(rate, clock.monotonic())
        self._waiting: dict[Producer, None] = {}  # in the order in which they began to wait
        self._timer: Timer | None = None

    @property
    def rate(self) -> Rate:
        return self._limiter.rate

    @property
    def times(self) -> int:
        """How often producers had to wait."""
        return self._limiter.times

    def admits(self, publish: Publish) -> bool:
        """May it go now? If not, its producer is told to go on later."""
        producer = publish.producer
        wait = self._limiter.wait_seconds(self._clock.monotonic())
        if wait > 0 or (self._waiting and producer not in self._waiting and self._timer is not None):
            if producer not in self._waiting:
                self._limiter.times += 1
                self._waiting[producer] = None
            self._arm(wait)
            return False
        self._limiter.take(publish.messages, publish.size)
        return True

    def _arm(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(seconds + 0.001, self._over)

    def _over(self) -> None:
        """Everybody in turn; who is stopped again goes to the end of the line."""
        self._timer = None
        while self._waiting:
            producer = next(iter(self._waiting))
            del self._waiting[producer]
            if not producer.closed:
                self._release(producer)
            if producer in self._waiting:
                break

    def stop(self) -> None:
        """The topic is going: nobody is let through any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """No limit from now on: whoever waits goes on (the caller has taken the gate away)."""
        self.stop()
        waiting, self._waiting = list(self._waiting), {}
        for producer in waiting:
            if not producer.closed:
                self._release(producer)
