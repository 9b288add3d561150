"""A whole topic (log, cursor, dispatcher, consumers) under any sequence of events, crashes included: what was published
is delivered until it is acknowledged, and what was confirmed as acknowledged never comes again."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.publish.producer import Publish
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.protocol.entry import build_batch, build_entry
from tests.support.in_memory.broker import BrokerWorld
from tests.support.in_memory.broker_fakes import peer_of

BATCH = 4
FULL = (1 << BATCH) - 1
ACTIONS = ["publish", "batch", "join", "leave", "flow", "ack", "ack", "partly", "upto", "nack", "nack some", "again",
           "turn", "cold", "roll", "flush", "crash"]  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1_000), st.integers(1, 5)), max_size=40)


def indexes(mask: int) -> list[int]:
    return [index for index in range(BATCH) if mask >> index & 1]


class Audit:
    """What the world must look like to consumers of one subscription. Masks have a bit per unacknowledged message."""

    def __init__(self, kind: SubscriptionType) -> None:
        self.kind = kind
        self.world = BrokerWorld(unacked_per_subscription_max=6, key_shared_lookahead_max=4)
        self.written: dict[Position, int] = {}  # position -> full mask
        self.left: dict[Position, int] = {}  # unacknowledged messages
        self.unconfirmed: dict[Position, int] = {}  # acknowledged since the last flush
        self.forgotten: dict[Position, int] = {}  # acknowledged without a flush before a crash: may come again
        self.consumers: list[tuple[Subscription, Consumer]] = []
        self.held: dict[Consumer, dict[Position, int]] = {}
        self.returned: Counter[tuple[Position, int]] = Counter()  # nacks of each message

    async def start(self) -> None:
        await self.world.start()
        self.topic = await self.world.topic()
        await self.topic.create_subscription("s", self.topic.log.first_position, {})

    async def publish(self, messages: int) -> None:
        producer = self.world.producer("filler")
        payload = build_entry(b"x") if messages == 1 else build_batch([b"x"] * messages)
        before = self.topic.log.total_messages
        self.topic.publish(Publish(producer, len(self.written), 0, 0, messages, payload, True))
        await self.world.settle(lambda: producer.is_idle)
        assert self.topic.log.total_messages == before + messages
        at = self.topic.log.last_position
        self.written[at] = self.left[at] = FULL if messages == BATCH else 1

    async def join(self, permits: int) -> None:
        if self.kind is SubscriptionType.EXCLUSIVE and self.consumers:
            return
        subscription, consumer = await self.world.subscribe(
            self.topic, "s", self.kind, permits=permits, nacks_messages=self.kind is SubscriptionType.SHARED
        )
        self.consumers.append((subscription, consumer))
        self.held[consumer] = {}

    def collect(self) -> None:
        for _, consumer in self.consumers:
            for body in peer_of(consumer).bodies(BaseCommand.MESSAGE):
                at = position_of(body.message_id)
                mask = body.ack_set[0] if body.ack_set else self.written[at]
                allowed = self.left[at] | self.unconfirmed.get(at, 0) | self.forgotten.get(at, 0)
                assert mask & ~allowed == 0, "a message comes again after its acknowledgement was confirmed"
                if self.kind is SubscriptionType.SHARED:
                    assert not any(held.get(at, 0) & mask for held in self.held.values()), "in two hands at once"
                    counts = {self.returned[at, index] for index in indexes(mask & self.left[at])}
                    assert counts <= {body.redelivery_count}, "the count is exact for every message"
                    mask |= self.held[consumer].get(at, 0)
                else:
                    assert self.left[at] & ~mask == 0, "an unacknowledged message is hidden"
                    if self.kind is SubscriptionType.KEY_SHARED:
                        assert not any(at in held for held in self.held.values()), "in two hands at once"
                self.held[consumer][at] = mask

    def ack(self, subscription: Subscription, consumer: Consumer, at: Position, mask: int) -> None:
        """Acknowledge the messages of `mask`."""
        rest = self.written[at] & ~mask
        if self.written[at] == 1 or not rest:
            subscription.ack(consumer, [(at, (), 0)])
        else:
            subscription.ack(consumer, [(at, (rest,), BATCH)])
        self.acked(at, mask)

    def acked(self, at: Position, mask: int) -> None:
        forgotten = self.forgotten.get(at, 0)
        self.unconfirmed[at] = self.unconfirmed.get(at, 0) | ((self.left[at] | forgotten) & mask)
        self.forgotten[at] = forgotten & ~mask
        self.left[at] &= ~mask
        for held in self.held.values():
            if not self.left[at]:
                held.pop(at, None)

    async def step(self, action: str, pick: int, count: int) -> None:
        world = self.world
        match action:
            case "publish" | "batch":
                await self.publish(1 if action == "publish" else BATCH)
            case "join":
                await self.join(count)
            case "turn":
                await world.settle(turns=count)
            case "cold":
                world.ledgers.uncached.update(info.id for info in self.topic.log.chain)
            case "roll":
                await self.topic.log.roll()
            case "crash":
                self.consumers, self.held = [], {}
                for at, mask in self.unconfirmed.items():
                    self.forgotten[at] = self.forgotten.get(at, 0) | mask
                self.unconfirmed = {}
                self.returned.clear()
                await world.crash()
                self.topic = await world.topic()
            case "flush":
                await self.topic.subscriptions["s"].flush()
                self.unconfirmed = {}
            case _ if self.consumers:
                self.act(action, *self.consumers[pick % len(self.consumers)], pick, count)
        self.collect()

    def act(self, action: str, subscription: Subscription, consumer: Consumer, pick: int, count: int) -> None:
        held = self.held[consumer]
        at = sorted(held)[pick % len(held)] if held else None
        match action:
            case "leave":
                self.consumers.remove((subscription, consumer))
                del self.held[consumer]
                self.topic.detach(subscription, consumer)
            case "flow":
                subscription.flow(consumer, count)
            case "ack" if at is not None:
                self.ack(subscription, consumer, at, self.written[at])
            case "partly" if at is not None:
                self.ack(subscription, consumer, at, (pick % FULL + 1) & self.written[at] or 1)
            case "upto" if at is not None and not self._is_shared:
                subscription.ack_cumulative(consumer, at, ())
                for below in [one for one in self.written if one <= at]:
                    self.acked(below, self.written[below])
            case "nack" if at is not None and self._is_shared:
                self.give_back(at, held.pop(at))
                subscription.redeliver(consumer, [at], None)
            case "nack some" if at is not None and self._is_shared and self.written[at] == FULL:
                bits = pick % FULL + 1
                if self.kind is SubscriptionType.SHARED:
                    self.give_back(at, held[at] & bits)
                    held[at] &= ~bits
                else:
                    del held[at]
                subscription.redeliver_parts(consumer, [(at, (bits,), BATCH)])
            case "again":
                for position, mask in held.items():
                    self.give_back(position, mask)
                for _, one in self.consumers if not self._is_shared else [(subscription, consumer)]:
                    if self._is_shared or one is subscription.active_consumer:
                        self.held[one] = {}
                subscription.redeliver(consumer, [], None)

    def give_back(self, at: Position, mask: int) -> None:
        for index in indexes(mask & self.left[at]):
            self.returned[at, index] += 1

    @property
    def _is_shared(self) -> bool:
        return self.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)

    async def finish(self) -> None:
        """One fresh consumer takes everything that is left."""
        for subscription, consumer in self.consumers:
            self.topic.detach(subscription, consumer)
        self.consumers, self.held = [], {}
        await self.join(1_000)
        ((subscription, consumer),) = self.consumers
        for _ in range(200):
            await self.world.settle(turns=20)
            self.world.clock.advance(1)
            self.collect()
            held = self.held[consumer]
            if not held:
                break
            for at in sorted(held):
                self.ack(subscription, consumer, at, self.written[at])
                held.pop(at, None)
        assert not any(self.left.values()), f"never delivered: {self.left}"
        await subscription.flush()
        assert await subscription.backlog_messages() == 0
        await self.topic.close()


async def run(kind: SubscriptionType, steps: list[tuple[str, int, int]]) -> None:
    audit = Audit(kind)
    await audit.start()
    assert isinstance(audit.topic, Topic)
    for step in steps:
        await audit.step(*step)
    await audit.finish()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(SubscriptionType)), STEPS)
def test_no_loss_and_no_redelivery_of_confirmed_acks(kind: SubscriptionType, steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(run(kind, steps))
