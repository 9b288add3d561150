"""`LayoutWatch` against a broker that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from anabranch.client.config import Backoff, ConnectionPolicy
from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_pool import ConnectionPool
from anabranch.client.errors import NotSupported, TopicNotFound
from anabranch.client.topic.layout_watch import LayoutWatch, LayoutWatches
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.chance import SystemChance
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.fake_broker import RETRY_DELAYS, FakeBroker, ReceivedCommand, send_layout
from tests.support.models.layout_histories import split

TOPIC = "topic://public/default/x"
REGULAR = "persistent://public/default/x"
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.001, maximum=0.01), partitions_every=0.01)
LOOKUP, CLOSE = BaseCommand.SCALABLE_TOPIC_LOOKUP, BaseCommand.SCALABLE_TOPIC_CLOSE


@asynccontextmanager
async def watching(broker: FakeBroker, topic: str = TOPIC) -> AsyncIterator[LayoutWatch]:
    clock = SystemClock()
    pool = ConnectionPool(Address.parse_all(broker.url), QUICK, clock)
    watches = LayoutWatches(pool, QUICK, clock, SystemChance())
    try:
        yield watches.hold(TopicName.parse(topic), "test")
    finally:
        await watches.close()
        await pool.close()


def epochs_of(watch: LayoutWatch) -> asyncio.Queue[TopicView]:
    seen: asyncio.Queue[TopicView] = asyncio.Queue()
    watch.follow(seen.put_nowait)
    return seen


async def next_of(seen: asyncio.Queue[TopicView]) -> TopicView:
    async with asyncio.timeout(RETRY_DELAYS):
        return await seen.get()


async def test_scenario_35_lost_session_is_reopened_with_its_id() -> None:
    first = Layout.initial(1, now_ms=0)
    async with FakeBroker(supports_scalable_topics=True) as broker, watching(broker) as watch:
        seen = epochs_of(watch)
        asked = await broker.expect(LOOKUP)
        assert asked.body.topic == TOPIC and asked.body.create_if_missing
        send_layout(asked, first, TOPIC)
        assert (await watch.wait_first(RETRY_DELAYS)).layout == first
        assert (await next_of(seen)).layout == first
        asked.connection.cut()
        again = await broker.expect(LOOKUP)
        assert again.body.session_id == asked.body.session_id
        assert not again.body.create_if_missing, "a topic deleted meanwhile must not come back by watching it"
        send_layout(again, split(first, 0), TOPIC)
        assert (await next_of(seen)).layout.epoch == 1


async def test_scenario_36_error_after_first_layout_reopens_the_session() -> None:
    first = Layout.initial(1, now_ms=0)
    async with FakeBroker(supports_scalable_topics=True) as broker, watching(broker) as watch:
        seen = epochs_of(watch)
        asked = await broker.expect(LOOKUP)
        send_layout(asked, first, TOPIC)
        assert (await next_of(seen)).layout == first
        for _ in range(3):
            asked.connection.send_command(
                BaseCommand.SCALABLE_TOPIC_UPDATE, session_id=asked.body.session_id, error=pb.TopicNotFound, message=""
            )
            await broker.expect(CLOSE)
            asked = await broker.expect(LOOKUP)
        assert watch.view.layout == first, "the last layout counts"
        send_layout(asked, split(first, 0), TOPIC)
        assert (await next_of(seen)).layout.epoch == 1


def deny(asked: ReceivedCommand) -> None:
    session_id = asked.body.session_id
    asked.connection.send_command(
        BaseCommand.SCALABLE_TOPIC_UPDATE, session_id=session_id, error=pb.TopicNotFound, message="none"
    )


async def test_refusal_of_the_first_lookup_is_final() -> None:
    ours = FakeBroker(supports_scalable_topics=True, anabranch_extensions=True)
    async with ours as broker, watching(broker) as watch:
        deny(await broker.expect(LOOKUP))
        with pytest.raises(TopicNotFound):
            await watch.wait_first(RETRY_DELAYS)


async def test_not_found_of_a_pulsar_broker_is_retried() -> None:
    """Apache Pulsar says so, too, of a topic that it is just unloading."""
    first = Layout.initial(1, now_ms=0)
    async with FakeBroker(supports_scalable_topics=True) as broker, watching(broker) as watch:
        deny(await broker.expect(LOOKUP))
        await broker.expect(CLOSE)
        send_layout(await broker.expect(LOOKUP), first, TOPIC)
        assert (await watch.wait_first(RETRY_DELAYS)).layout == first


async def test_lasting_not_found_of_a_pulsar_broker_is_final() -> None:
    async with FakeBroker(supports_scalable_topics=True) as broker, watching(broker) as watch:

        async def go_on() -> None:
            while True:
                asked = await broker.expect(LOOKUP, CLOSE)
                if asked.kind == LOOKUP:
                    deny(asked)

        async with asyncio.TaskGroup() as group:
            denying = group.create_task(go_on())
            with pytest.raises(TopicNotFound):
                await watch.wait_first(RETRY_DELAYS)
            denying.cancel()


async def test_refresh_opens_a_new_session() -> None:
    first = Layout.initial(1, now_ms=0)
    async with FakeBroker(supports_scalable_topics=True) as broker, watching(broker) as watch:
        seen = epochs_of(watch)
        asked = await broker.expect(LOOKUP)
        watch.refresh()
        send_layout(asked, first, TOPIC)  # may be older than the question
        await broker.expect(CLOSE)
        send_layout(await broker.expect(LOOKUP), split(first, 0), TOPIC)
        assert [(await next_of(seen)).layout.epoch for _ in range(2)] == [0, 1]


async def test_scenario_8_a_broker_without_scalable_topics() -> None:
    async with FakeBroker() as broker:
        async with watching(broker) as watch:
            with pytest.raises(NotSupported):
                await watch.wait_first(RETRY_DELAYS)
        broker.partitions = {REGULAR: 2}
        async with watching(broker, REGULAR) as watch:
            seen = epochs_of(watch)
            assert len((await watch.wait_first(RETRY_DELAYS)).layout.active) == 2
            await next_of(seen)
            broker.partitions = {REGULAR: 5}
            assert len((await next_of(seen)).layout.active) == 5


async def test_regular_topic_with_scalable_topics_switched_off() -> None:
    async with FakeBroker(supports_scalable_topics=True) as broker, watching(broker, REGULAR) as watch:
        asked = await broker.expect(LOOKUP)
        asked.connection.send_command(
            BaseCommand.SCALABLE_TOPIC_UPDATE, session_id=asked.body.session_id, error=pb.NotAllowedError, message="off"
        )
        assert (await watch.wait_first(RETRY_DELAYS)).is_synthetic


async def test_connection_that_broke_before_use_is_not_awaited() -> None:
    first = Layout.initial(1, now_ms=0)
    async with FakeBroker(supports_scalable_topics=True) as broker:
        clock = SystemClock()
        pool = BreakingPool(Address.parse_all(broker.url), QUICK, clock)
        watches = LayoutWatches(pool, QUICK, clock, SystemChance())
        try:
            watch = watches.hold(TopicName.parse(TOPIC), "test")
            send_layout(await broker.expect(LOOKUP), first, TOPIC)
            assert (await watch.wait_first(RETRY_DELAYS)).layout == first
            assert pool.broken == 1
        finally:
            await watches.close()
            await pool.close()


class BreakingPool(ConnectionPool):
    """Its first connection is gone when it is handed over."""

    broken = 0

    async def connection(self, address: Address | None = None) -> Connection:
        found = await super().connection(address)
        if not self.broken:
            self.broken = 1
            found.abort("cut")
        return found
