"""Looking at loaded topics now and then, so that rates and times of last use are there whoever asks, and when.

Where messages pass it is only noted that something happened (`stirred`): a look compares counters with those of the
look before. Rates are over the last minute; a time of last use is that of the look which saw it, at most `LOOK_SECONDS`
late. A topic is awake from what happens in it until a minute without anything has passed; the others are not looked at.
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

LOOK_SECONDS = 10.0


@dataclass(slots=True)
class SubscriptionSample:
    """What is remembered of one subscription, and what the last look found."""

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
    short: Meter | None = None  # the same counters over a shorter time, for who wants that (`segment_rates`)

    @property
    def is_quiet(self) -> bool:
        """Nothing has happened for a whole window."""
        return not any(self.rates) and not any(any(one.rates) for one in self.subscriptions.values())


class Sampler:
    def __init__(self, clock: Clock, activity: View[Topic | NonPersistentTopic]) -> None:
        self._clock = clock
        self._activity = activity
        self._awake: set[Topic | NonPersistentTopic] = set()
        self._books: dict[TopicName, TopicSample] = {}

    async def run(self, topics: Mapping[TopicName, Topic | NonPersistentTopic]) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            budget = YieldBudget(self._clock)
            for topic in tuple(self.awake()):
                # Quiet, and stirred at this very moment: it is noted, and awake again with the next question.
                if topics.get(topic.name) is not topic or self.look(topic).is_quiet:
                    self._awake.discard(topic)
                await budget.spend()
            self._forget(topics)

    def awake(self) -> set[Topic | NonPersistentTopic]:
        """Topics in which something happened during the last minute; all others have rates of 0. (Some of these may be
        closed by now.)"""
        self._awake |= self._activity.take()
        return self._awake

    def _forget(self, topics: Mapping[TopicName, Topic | NonPersistentTopic]) -> None:
        """What is no longer loaded."""
        if len(self._books) > len(topics):
            self._books = {name: book for name, book in self._books.items() if name in topics}

    def throughput(self, name: TopicName) -> float:
        """Bytes per second, in and out, as the last look found them."""
        book = self._books.get(name)
        return 0.0 if book is None else book.rates[1] + book.rates[3]

    def look(self, topic: Topic | NonPersistentTopic) -> TopicSample:
        """Read the topic's counters now; the book is good until the next look."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        book = self._books.get(topic.name) or self._books.setdefault(topic.name, TopicSample())
        out = size = 0
        for name, subscription in topic.subscriptions.items():
            one = book.subscriptions.get(name) or book.subscriptions.setdefault(name, SubscriptionSample())
            _look_at(subscription, one, now, now_ms)
            out += one.totals[0]
            size += one.totals[1]
        if len(book.subscriptions) > len(topic.subscriptions):
            book.subscriptions = {name: one for name, one in book.subscriptions.items() if name in topic.subscriptions}
        totals = (topic.messages_in, topic.bytes_in, out, size)
        if totals[0] > book.totals[0]:
            book.published_ms = now_ms
        book.totals, book.rates = totals, book.meter.rates(now, totals)
        return book


def _look_at(
    subscription: Subscription | MemorySubscription, book: SubscriptionSample, now: float, now_ms: int
) -> None:
    totals = sent(subscription)
    if totals[0] > book.totals[0]:
        book.out_ms = now_ms
    if totals[2] > book.totals[2]:
        book.acked_ms = now_ms
    mark = subscription.mark_delete
    if book.mark is not None and mark != book.mark:
        book.mark_ms = now_ms
    book.mark, book.totals, book.rates = mark, totals, book.meter.rates(now, totals)


def sent(subscription: Subscription | MemorySubscription) -> tuple[int, ...]:
    """Messages out, bytes out, acknowledged, redelivered: of all consumers there are or were; expired or dropped."""
    messages = size = acked = again = 0
    everybody: list[Consumer | Departed] = [subscription.departed, *subscription.consumers]
    for one in everybody:
        messages += one.messages_out
        size += one.bytes_out
        acked += one.messages_acked
        again += one.messages_redelivered
    lost = subscription.entries_expired if isinstance(subscription, Subscription) else subscription.messages_dropped
    return messages, size, acked, again, lost
