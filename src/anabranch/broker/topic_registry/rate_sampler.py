"""Samples counters of active topics every `SAMPLE_SECONDS`, for rates and times of last use.

The message path only marks a topic as active (`activity`); a sample compares counters with those of the sample before.
Rates are over the last minute. A time of last use is that of the sample which saw it, so it is up to `SAMPLE_SECONDS`
late. A topic counts as active until it has had no traffic for one minute. Inactive topics are not sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.broker.subscription.consumer import Consumer, Departed
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.non_persistent_topic import MemorySubscription, NonPersistentTopic
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.activity import View
from anabranch.broker.topic_registry.rate_meter import Meter
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import YieldBudget

SAMPLE_SECONDS = 10.0


@dataclass(slots=True)
class SubscriptionSample:
    """Counters and rates of one subscription at the last sample."""

    meter: Meter = field(default_factory=Meter)
    totals: tuple[int, ...] = (0, 0, 0, 0, 0)  # messages out, bytes out, acknowledged, redelivered, expired or dropped
    rates: tuple[float, ...] = (0.0,) * 5
    mark: Position | None = None
    out_ms: int = 0
    acked_ms: int = 0
    mark_ms: int = 0


@dataclass(slots=True)
class TopicSample:
    meter: Meter = field(default_factory=Meter)
    totals: tuple[int, ...] = (0, 0, 0, 0)  # messages in, bytes in, messages out, bytes out
    rates: tuple[float, ...] = (0.0,) * 4
    published_ms: int = 0
    subscriptions: dict[str, SubscriptionSample] = field(default_factory=dict)
    short: Meter | None = None  # the same counters over a shorter window (`segment_host.segment_stats`)

    @property
    def is_quiet(self) -> bool:
        """Whether the topic had no traffic for a whole window."""
        return not any(self.rates) and not any(any(one.rates) for one in self.subscriptions.values())


class Sampler:
    def __init__(self, clock: Clock, activity: View[Topic | NonPersistentTopic]) -> None:
        self._clock = clock
        self._activity = activity
        self._active: set[Topic | NonPersistentTopic] = set()
        self._samples: dict[TopicName, TopicSample] = {}

    async def run(self, topics: Mapping[TopicName, Topic | NonPersistentTopic]) -> None:
        """Sample the active topics periodically; never returns."""
        while True:
            await self._clock.sleep(SAMPLE_SECONDS)
            await self._sample_active(topics)

    async def _sample_active(self, topics: Mapping[TopicName, Topic | NonPersistentTopic]) -> None:
        budget = YieldBudget(self._clock)
        for topic in tuple(self.active()):
            # A topic that is marked right now becomes active again with the next call of `active`.
            if topics.get(topic.name) is not topic or self.sample(topic).is_quiet:
                self._active.discard(topic)
            await budget.spend()
        self._forget(topics)

    def active(self) -> set[Topic | NonPersistentTopic]:
        """Topics with traffic during the last minute; all others have rates of 0. Some may be closed already."""
        self._active |= self._activity.take()
        return self._active

    def forget(self, topic: Topic | NonPersistentTopic) -> None:
        """The topic is unloaded or deleted."""
        self._active.discard(topic)
        self._samples.pop(topic.name, None)

    def _forget(self, topics: Mapping[TopicName, Topic | NonPersistentTopic]) -> None:
        """Drop samples of topics that are no longer loaded."""
        if len(self._samples) > len(topics):
            self._samples = {name: sample for name, sample in self._samples.items() if name in topics}

    def throughput(self, name: TopicName) -> float:
        """Bytes per second, in and out, at the last sample."""
        sample = self._samples.get(name)
        return 0.0 if sample is None else sample.rates[1] + sample.rates[3]

    def sample(self, topic: Topic | NonPersistentTopic) -> TopicSample:
        """Read the topic's counters now. The result is valid until the next sample."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        sample = self._samples.get(topic.name) or self._samples.setdefault(topic.name, TopicSample())
        out = size = 0
        for name, subscription in topic.subscriptions.items():
            one = sample.subscriptions.get(name) or sample.subscriptions.setdefault(name, SubscriptionSample())
            _sample_subscription(subscription, one, now, now_ms)
            out += one.totals[0]
            size += one.totals[1]
        if len(sample.subscriptions) > len(topic.subscriptions):
            sample.subscriptions = {
                name: one for name, one in sample.subscriptions.items() if name in topic.subscriptions
            }
        totals = (topic.messages_in, topic.bytes_in, out, size)
        if totals[0] > sample.totals[0]:
            sample.published_ms = now_ms
        sample.totals, sample.rates = totals, sample.meter.rates(now, totals)
        return sample


def _sample_subscription(
    subscription: Subscription | MemorySubscription, sample: SubscriptionSample, now: float, now_ms: int
) -> None:
    totals = delivery_totals(subscription)
    for consumer in subscription.consumers:
        consumer.times.sampled(consumer.messages_out, consumer.messages_acked, now_ms)
    if totals[0] > sample.totals[0]:
        sample.out_ms = now_ms
    if totals[2] > sample.totals[2]:
        sample.acked_ms = now_ms
    mark = subscription.mark_delete
    if sample.mark is not None and mark != sample.mark:
        sample.mark_ms = now_ms
    sample.mark, sample.totals, sample.rates = mark, totals, sample.meter.rates(now, totals)


def delivery_totals(subscription: Subscription | MemorySubscription) -> tuple[int, ...]:
    """Messages out, bytes out, acknowledged, redelivered (of present and former consumers); expired or dropped."""
    messages = size = acked = again = 0
    counted: list[Consumer | Departed] = [subscription.departed, *subscription.consumers]
    for one in counted:
        messages += one.messages_out
        size += one.bytes_out
        acked += one.messages_acked
        again += one.messages_redelivered
    lost = subscription.entries_expired if isinstance(subscription, Subscription) else subscription.messages_dropped
    return messages, size, acked, again, lost
