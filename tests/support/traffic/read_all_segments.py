"""Reads all messages of a scalable topic, parents before children, so that each key is in order.

Uses a raw client with non-durable cursors: tests of producers do not depend on the SDK's consumers.
"""

from __future__ import annotations

from anabranch.client.topic.topic_view import TopicView, read_view
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.protocol.entry import BatchMessage, split_batch
from tests.support.traffic.raw_client import RawClient


async def layout_of(raw: RawClient, topic: str) -> TopicView:
    raw.tell(BaseCommand.SCALABLE_TOPIC_LOOKUP, session_id=1, topic=topic)
    update = (await raw.expect(BaseCommand.SCALABLE_TOPIC_UPDATE)).body
    raw.tell(BaseCommand.SCALABLE_TOPIC_CLOSE, session_id=1)
    return read_view(update, TopicName.parse(topic))


async def stored(service_url: str, topic: str) -> list[BatchMessage]:
    """All messages of all segments. Children have higher ids than their parents."""
    found: list[BatchMessage] = []
    async with RawClient(service_url) as raw:
        await raw.hello(extensions=True)
        view = await layout_of(raw, topic)
    for segment_id in sorted(view.layout.segments):
        found += await _segment(service_url, view.backing(view.layout[segment_id]))
    return found


async def _segment(service_url: str, name: str) -> list[BatchMessage]:
    address = await _owner(service_url, name)
    found: list[BatchMessage] = []
    async with RawClient(address) as raw:
        await raw.hello()
        await raw.subscribe(
            name,
            subscription="reading",
            durable=False,
            subType=pb.CommandSubscribe.Exclusive,
            start_message_id=pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1),
        )
        answer = (await raw.ask(BaseCommand.GET_LAST_MESSAGE_ID, consumer_id=1)).body
        last = position_of(answer.last_message_id)
        if last.entry < 0:
            return found
        place = Position(-1, -1)
        while place < last:
            raw.flow(1000)
            while True:
                message = await raw.expect(BaseCommand.MESSAGE)
                place = position_of(message.body.message_id)
                entries = split_batch(message.payload or b"")
                found += entries
                if place >= last:
                    break
                raw.flow(len(entries))
    return found


async def _owner(service_url: str, name: str) -> str:
    for _ in range(5):
        async with RawClient(service_url) as raw:
            await raw.hello()
            answer = (await raw.ask(BaseCommand.LOOKUP, topic=name)).body
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return str(answer.brokerServiceUrl or service_url)
            service_url = str(answer.brokerServiceUrl)
    raise AssertionError(f"no broker serves {name}")
