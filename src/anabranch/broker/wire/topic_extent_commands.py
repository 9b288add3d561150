"""TOPIC_EXTENT: stored range and sizes of a topic or segment, for readers that plan their own ranges, such as Spark.

Reads the sums of the log and its sparse index; changes nothing and needs no subscription.
"""

from __future__ import annotations

from typing import Any

from anabranch.broker.services import Services
from anabranch.broker.topic.non_persistent_topic import NonPersistentTopic
from anabranch.broker.topic.topic import Topic
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.model.errors import NotAllowed
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame, position_of
from anabranch.protocol.frames import Frame
from anabranch.security.authorization import Resource
from anabranch.storage.topic.topic_log import TopicLog


class ExtentCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services

    def handlers(self) -> dict[BaseType, Handler]:
        return {int(BaseCommand.TOPIC_EXTENT): self._extent}

    def _extent(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer(body), "topic extent")

    async def _answer(self, body: Any) -> None:
        name = TopicName.parse(body.topic)
        await self._connection.authorize(BaseCommand.TOPIC_EXTENT, Resource.of_topic(name))
        topic = await self._services.topics.get(name, create=False)
        if isinstance(topic, NonPersistentTopic):
            raise NotAllowed(f"{name} is not persistent and stores nothing")
        answer = await extent(topic, body)
        self._connection.send(frame(BaseCommand(type=BaseCommand.TOPIC_EXTENT_RESPONSE, topic_extent_response=answer)))


async def extent(topic: Topic, asked: pb.CommandTopicExtent) -> pb.CommandTopicExtentResponse:
    log = topic.log
    first, last = log.first_position, topic.stable_position()
    end = Position(0, 0) if last == EARLIEST else Position(last.ledger, last.entry + 1)
    start = max(position_of(asked.start), first) if asked.HasField("start") else first
    answer = pb.CommandTopicExtentResponse(
        request_id=asked.request_id,
        first=_id(first),
        end=_id(end),
        terminated=log.is_terminated,
        incarnation=log.origin,
        deduplicates=topic.deduplication.is_on,
    )
    if log.chain.trimmed_to != EARLIEST:
        answer.trimmed_to.CopyFrom(_id(log.chain.trimmed_to))
    for info in log.chain:
        if info.entries:
            answer.ledgers.add(ledger_id=info.id, entries=info.entries, messages=info.messages, bytes=info.bytes)
    answer.messages = await log.messages_between(_before(start), last) if start < end else 0
    answer.bytes = _bytes_from(log, start)
    if asked.HasField("messages_max"):
        answer.upto.CopyFrom(_id(await _upto(log, start, end, asked.messages_max)))
    if asked.HasField("publish_time"):
        at = await log.position_at_time(min(asked.publish_time, (1 << 63) - 1))
        moment = at if at < end else max(first, end)
        answer.at_time.CopyFrom(_id(moment))
        if start < moment:
            answer.messages_to_time = await log.messages_between(_before(start), _before(moment))
    return answer


async def _upto(log: TopicLog, start: Position, end: Position, messages_max: int) -> Position:
    """End (exclusive) of the longest run from `start` with at most `messages_max` messages; `start` if there is none.

    Uses the sums of whole ledgers, then a binary search in the sparse index: a few lookups for any length.
    """
    base = await log.messages_upto(_before(start))
    found = start
    for info in log.chain:
        if info.id < start.ledger or not info.entries or Position(info.id, 0) >= end:
            continue
        low = start.entry if info.id == start.ledger else 0
        high = min(info.entries, end.entry) if info.id == end.ledger else info.entries
        if low >= high:
            continue
        if await log.messages_upto(Position(info.id, high - 1)) - base <= messages_max:
            found = Position(info.id, high)
            continue
        while low < high:  # `low` entries of it fit, `high` do not
            middle = (low + high + 1) // 2
            if await log.messages_upto(Position(info.id, middle - 1)) - base <= messages_max:
                low = middle
            else:
                high = middle - 1
        first_here = start.entry if info.id == start.ledger else 0
        return Position(info.id, low) if low > first_here else found
    return found


def _bytes_from(log: TopicLog, start: Position) -> int:
    """Approximate: in the ledger of `start` all entries have the average size."""
    total = 0
    for info in log.chain:
        if info.id > start.ledger:
            total += info.bytes
        elif info.id == start.ledger and info.entries:
            total += info.bytes * max(info.entries - max(start.entry, 0), 0) // info.entries
    return total


def _before(p: Position) -> Position:
    return Position(p.ledger, p.entry - 1)


def _id(p: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=max(p.ledger, 0), entryId=max(p.entry, 0))
