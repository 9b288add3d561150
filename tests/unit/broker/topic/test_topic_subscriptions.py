"""Subscriptions of one topic on an in-memory log: one cursor per name, none left by readers."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.errors import ConsumerBusy, SubscriptionNotFound, TopicFenced
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.compaction import CURSOR
from anabranch.broker.topic.topic_subscriptions import TopicSubscriptions
from anabranch.model.errors import NotAllowed, TooManySubscriptions
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.topic.topic_log import TopicLog
from tests.support.in_memory.broker_fakes import make_consumer
from tests.support.in_memory.topic_log import TopicWorld


class Scene:
    """The table alone: a log, and subscriptions that read it."""

    def __init__(self) -> None:
        self.world = TopicWorld()
        self.tasks = TaskOwner("scene")
        self.is_open = True
        self.room = 10
        self.asked: list[int] = []

    async def start(self) -> Scene:
        self.log: TopicLog = await self.world.open()
        self.table = TopicSubscriptions(self.log, self.make, self.tasks, self.check_open)
        self.table.load()
        return self

    def stable_position(self) -> Position:
        return self.log.last_position

    def make(self, name: str, cursor: Cursor) -> Subscription:
        settings = BrokerSettings()
        return Subscription(
            name,
            cursor,
            self,
            partition=-1,
            settings=settings,
            clock=self.world.clock,
            tasks=self.tasks,
            mark_active=lambda: None,
        )

    def check_open(self) -> None:
        if not self.is_open:
            raise TopicFenced("closing")

    def check_room(self, known: int) -> None:
        self.asked.append(known)
        if known >= self.room:
            raise TooManySubscriptions("full")

    async def create(self, name: str, *, durable: bool = True) -> Subscription:
        start = self.log.first_position
        return await self.table.create(name, start, {}, durable=durable, check_room=self.check_room)


async def test_two_first_subscribers_get_one_cursor() -> None:
    scene = await Scene().start()
    one, two = await asyncio.gather(scene.create("s"), scene.create("s"))
    assert one is two and one.cursor is scene.log.cursors["s"]
    assert scene.asked == [0]  # the second was not a new one


async def test_room_is_asked_for_durable_ones_only() -> None:
    scene = await Scene().start()
    scene.room = 1
    await scene.create("s")
    await scene.create("reader", durable=False)
    with pytest.raises(TooManySubscriptions):
        await scene.create("t")
    assert set(scene.table.by_name) == {"s", "reader"}
    assert (scene.table.durable_count, scene.table.consumer_count) == (1, 0)


async def test_compaction_cursor_is_no_subscription() -> None:
    scene = await Scene().start()
    with pytest.raises(NotAllowed):
        await scene.create(CURSOR)
    await scene.log.create_cursor(CURSOR, scene.log.first_position, {}, True)
    scene.table.load()
    assert not scene.table.by_name


async def test_reader_is_deleted_with_its_last_consumer() -> None:
    scene = await Scene().start()
    reader = await scene.create("reader", durable=False)
    kept = await scene.create("kept")
    consumers = [make_consumer(SubscriptionType.SHARED, number) for number in (1, 2)]
    for consumer in consumers:
        reader.attach(consumer)
    for consumer in consumers:
        assert "reader" in scene.table.by_name
        reader.detach(consumer)
        scene.table.left(reader)
        scene.table.left(kept)
    await scene.world.settle(lambda: "reader" not in scene.log.cursors)
    assert set(scene.table.by_name) == set(scene.log.cursors) == {"kept"}


async def test_reader_is_deleted_by_the_second_sweep_without_consumer() -> None:
    scene = await Scene().start()
    await scene.create("reader", durable=False)
    await scene.create("kept")
    await scene.table.sweep()
    assert set(scene.table.by_name) == {"reader", "kept"}
    await scene.table.sweep()
    assert set(scene.table.by_name) == set(scene.log.cursors) == {"kept"}


async def test_removal_needs_force_while_others_are_attached() -> None:
    scene = await Scene().start()
    found = await scene.create("s")
    one, two = (make_consumer(SubscriptionType.SHARED, number) for number in (1, 2))
    found.attach(one)
    found.attach(two)
    with pytest.raises(ConsumerBusy):
        await scene.table.remove("s", force=False, by=one)
    await scene.table.remove("s", force=True, by=one)
    assert not scene.table.by_name and not scene.log.cursors
    with pytest.raises(SubscriptionNotFound):
        await scene.table.remove("s", force=True)


async def test_nothing_is_made_once_the_topic_is_closing() -> None:
    scene = await Scene().start()
    scene.is_open = False
    with pytest.raises(TopicFenced):
        await scene.create("s")
    assert not scene.log.cursors


async def test_caught_up_is_no_backlog_anywhere() -> None:
    scene = await Scene().start()
    found = await scene.create("s")
    positions = await scene.world.fill(scene.log, 2)
    before = scene.table.is_caught_up
    found.skip_to(positions[-1])
    assert (before, scene.table.is_caught_up) == (False, True)
