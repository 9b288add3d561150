"""Publish rate of one topic: producers wait in a queue while the bucket is in debt.

SENDs wait in the producer's own `pending` queue, so their order, the bound on pending bytes of the connection and a
clean close need no extra code. A topic without a rate has no limiter.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.token_bucket import Rate, RateLimiter
from anabranch.runtime.clock import Clock, Timer


class PublishRateLimiter:
    def __init__(self, rate: Rate, clock: Clock, release: Callable[[Producer], None]) -> None:
        """`release` submits pending SENDs of a producer and asks `admits` for each."""
        self._clock = clock
        self._release = release
        self._limiter = RateLimiter(rate, clock.monotonic())
        self._waiting: dict[Producer, None] = {}  # in order of waiting
        self._timer: Timer | None = None

    @property
    def rate(self) -> Rate:
        return self._limiter.rate

    @property
    def times(self) -> int:
        """How often a producer had to wait."""
        return self._limiter.times

    def admits(self, publish: Publish) -> bool:
        """Whether the publish may be submitted now; if not, `release` is called for its producer later."""
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
        """Release the waiting producers in turn; one that has to wait again goes to the end of the queue."""
        self._timer = None
        while self._waiting:
            producer = next(iter(self._waiting))
            del self._waiting[producer]
            if not producer.closed:
                self._release(producer)
            if producer in self._waiting:
                break

    def stop(self) -> None:
        """The topic is being closed: waiting producers are not released."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """The limit is removed: release all waiting producers. The caller has detached this limiter before."""
        self.stop()
        waiting, self._waiting = list(self._waiting), {}
        for producer in waiting:
            if not producer.closed:
                self._release(producer)
