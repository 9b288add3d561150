"""A stream consumer against a broker that refuses its assignment."""

from __future__ import annotations

import asyncio
from typing import Any

import anabranch
from anabranch import Backoff, ConnectionPolicy, StreamConsumer
from anabranch.client.async_resource import AsyncResource
from anabranch.model.layout import Layout
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from tests.support.in_memory.fake_broker import FakeBroker, ReceivedCommand, send_layout

TOPIC = "topic://public/default/t"
SEGMENT = "segment://public/default/t/0000-ffff-0"
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.05))


def assignment(generation: int | None) -> pb.ScalableConsumerAssignment:
    given = pb.ScalableAssignedSegment(segment_id=0, hash_start=0, hash_end=0xFFFF, segment_topic=SEGMENT)
    made = pb.ScalableConsumerAssignment(layout_epoch=0, segments=[given])
    if generation is not None:
        made.generation, made.incarnation = generation, 7
    return made


async def registered(
    broker: FakeBroker, client: Any, generation: int | None
) -> tuple[asyncio.Task[Any], ReceivedCommand]:
    """A consumer that has registered and asks for its segment; its session, and its SUBSCRIBE."""
    opening: AsyncResource[StreamConsumer] = client.stream_consumer(TOPIC, subscription="s", name="me")

    async def opened() -> StreamConsumer:
        return await opening

    task = asyncio.create_task(opened())
    send_layout(
        await broker.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP), Layout.initial(1, now_ms=1), TOPIC, incarnation=7
    )
    session = await broker.expect(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    session.answer(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, assignment=assignment(generation))
    return task, session


async def test_fenced_assignment_is_dropped_and_the_next_one_tried() -> None:
    async with (
        FakeBroker(anabranch_extensions=True, supports_scalable_topics=True) as broker,
        anabranch.connect(broker.url, connection=QUICK) as client,
    ):
        opening, session = await registered(broker, client, 5)
        first = await broker.expect(BaseCommand.SUBSCRIBE)
        assert (first.body.topic, first.body.generation, first.body.incarnation) == (SEGMENT, 5, 7)
        first.answer(BaseCommand.SUCCESS)
        consumer = await opening
        await broker.expect(BaseCommand.FLOW)
        first.connection.send_command(BaseCommand.CLOSE_CONSUMER, consumer_id=first.body.consumer_id, request_id=99)
        again = await broker.expect(BaseCommand.SUBSCRIBE)
        assert again.body.generation == 5
        again.answer(BaseCommand.ERROR, error=ServerError.ConsumerAssignError, message="another's")
        free = await broker.expect(BaseCommand.SEGMENT_RELEASE)
        assert (free.body.generation, list(free.body.segment_ids)) == (5, [0])
        session.connection.send_command(
            BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE,
            consumer_id=session.body.consumer_id,
            assignment=assignment(9),
        )
        anew = await broker.expect(BaseCommand.SUBSCRIBE)  # and nothing before that: it does not retry by itself
        assert anew.body.generation == 9
        anew.answer(BaseCommand.SUCCESS)
        await broker.expect(BaseCommand.FLOW)
        await consumer.close(timeout=0)


async def test_brokers_without_generations_get_none_and_may_refuse() -> None:
    async with (
        FakeBroker(supports_scalable_topics=True) as broker,
        anabranch.connect(broker.url, connection=QUICK) as client,
    ):
        opening, _ = await registered(broker, client, None)
        first = await broker.expect(BaseCommand.SUBSCRIBE)
        assert not first.body.HasField("generation")
        first.answer(BaseCommand.SUCCESS)
        consumer = await opening
        await broker.expect(BaseCommand.FLOW)
        first.connection.send_command(BaseCommand.CLOSE_CONSUMER, consumer_id=first.body.consumer_id, request_id=99)
        for _ in range(3):  # ranges are given out anew there: that passes
            again = await broker.expect(BaseCommand.SUBSCRIBE)
            again.answer(BaseCommand.ERROR, error=ServerError.ConsumerAssignError, message="ranges overlap")
        last = await broker.expect(BaseCommand.SUBSCRIBE)
        last.answer(BaseCommand.SUCCESS)
        await broker.expect(BaseCommand.FLOW)
        await consumer.close(timeout=0)
