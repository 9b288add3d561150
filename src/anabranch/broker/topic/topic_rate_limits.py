"""Publish, dispatch and subscribe rates of one topic, from its policies.

A rate that does not change keeps its bucket with its debt. If a rate is removed, waiting producers are released.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.catalog.policies import Policies
from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.publish.producer import Producer
from anabranch.broker.publish.publish_rate_limiter import PublishRateLimiter
from anabranch.broker.subscription.consumer import ConsumerSpec
from anabranch.broker.token_bucket import NO_LIMIT, Rate, RateLimiter, SubscribeRates
from anabranch.broker.topic.policy_limits import check_subscribe_rate
from anabranch.runtime.clock import Clock


class TopicRates:
    __slots__ = ("_clock", "_publish_limiter", "_on_publish_limiter", "_release", "_subscribes", "dispatch")

    def __init__(
        self,
        clock: Clock,
        release: Callable[[Producer], None],
        on_publish_limiter: Callable[[PublishRateLimiter | None], None],
    ) -> None:
        """`release` submits pending SENDs of a producer. `on_publish_limiter` receives a new limiter before the
        producers that wait for the old one are released."""
        self._clock = clock
        self._release = release
        self._on_publish_limiter = on_publish_limiter
        self._publish_limiter: PublishRateLimiter | None = None
        self._subscribes = SubscribeRates()
        self.dispatch: RateLimiter | None = None  # shared by all subscriptions

    def apply(self, policies: Policies) -> None:
        self._set_publish_rate(policies.publish_rate)
        self._subscribes.change(policies.subscribe_rate)
        wanted, known = policies.dispatch_rate, self.dispatch
        if not wanted.is_limited:
            self.dispatch = None
        elif known is None or known.rate != wanted:
            self.dispatch = RateLimiter(wanted, self._clock.monotonic())

    def _set_publish_rate(self, rate: Rate) -> None:
        before = self._publish_limiter
        if rate == (NO_LIMIT if before is None else before.rate):
            return
        self._publish_limiter = PublishRateLimiter(rate, self._clock, self._release) if rate.is_limited else None
        self._on_publish_limiter(self._publish_limiter)
        if before is not None:
            before.close()

    @property
    def limits_publishing(self) -> bool:
        return self._publish_limiter is not None

    def check_subscribe(self, peer: ClientConnection, spec: ConsumerSpec) -> None:
        """Raises NotAllowed if the consumer subscribes too often."""
        check_subscribe_rate(self._subscribes, peer, spec, self._clock.monotonic())

    @property
    def publish_times(self) -> int:
        """How often a producer had to wait."""
        return 0 if self._publish_limiter is None else self._publish_limiter.times

    @property
    def dispatch_times(self) -> int:
        """How often delivery had to wait for the topic's rate."""
        return 0 if self.dispatch is None else self.dispatch.times

    def stop(self) -> None:
        """The topic is being closed: waiting producers are not released."""
        if self._publish_limiter is not None:
            self._publish_limiter.stop()
