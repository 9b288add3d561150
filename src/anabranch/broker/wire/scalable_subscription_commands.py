"""Commands that change a whole subscription of a scalable topic: seek and unsubscribe (204, 205).

They are answered by the broker that leads the topic, and need no registered consumer: a queue consumer has none there.
Permission is checked each time, because neither can be undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anabranch.broker.services import Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.controller.interface import ScalableTopics, SegmentPosition
from anabranch.model.errors import BadRequest, NotAllowed
from anabranch.model.names import TopicName, check_subscription_name
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.protocol.frames import Frame
from anabranch.security.authorization import Resource

TIME_MAX = (1 << 63) - 1
OPERATION_ID_MAX = 128
ACK_WORDS_MAX = 1024
"""Words of 64 messages in one batch."""


class ScalableSubscriptionCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection, self._services = connection, services

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.SCALABLE_TOPIC_SEEK): self._seek,
            int(BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE): self._unsubscribe,
        }

    def _seek(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_seek(body), "scalable seek")

    async def _answer_seek(self, body: Any) -> None:
        topic, name = await self._authorized(BaseCommand.SCALABLE_TOPIC_SEEK, body)
        publish_ms = min(body.publish_time, TIME_MAX) if body.HasField("publish_time") else None
        positions = tuple(_positions(body.segments))
        if (publish_ms is None) == (not positions):
            raise BadRequest("a seek names either a time or positions")
        operation_id = _operation_id(name, body)
        generation = await self._topics().move(topic, name, publish_ms, positions, operation_id)
        self._connection.send(replies.success(body.request_id, generation=generation))

    def _unsubscribe(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_unsubscribe(body), "scalable unsubscribe")

    async def _answer_unsubscribe(self, body: Any) -> None:
        topic, name = await self._authorized(BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE, body)
        if body.HasField("unless_used_besides"):
            await self._topics().check_unused(topic, name, body.unless_used_besides)
        else:
            await self._topics().check_unused(topic, name)
            await self._topics().unsubscribe(topic, name, _operation_id(name, body))
        self._connection.send(replies.success(body.request_id))

    async def _authorized(self, kind: int, body: Any) -> tuple[TopicName, str]:
        topic, name = TopicName.parse(body.topic).scalable, check_subscription_name(body.subscription)
        await self._connection.authorize(kind, Resource.of_topic(topic, name))
        return topic, name

    def _topics(self) -> ScalableTopics:
        found = self._services.scalable
        if found is None or not found.is_enabled:
            raise NotAllowed("scalable topics are switched off (scalable_topics.enabled)")
        return found


def _operation_id(name: str, body: Any) -> str:
    """With the subscription, so that no client can name the operation of another subscription."""
    given: str = body.operation_id
    if not (given.isascii() and given.isalnum() and len(given) <= OPERATION_ID_MAX):
        raise BadRequest(f"an operation id has 1 to {OPERATION_ID_MAX} letters and digits")
    return f"{given}@{name}"


def _positions(segments: Iterable[pb.SegmentProgress]) -> Iterable[SegmentPosition]:
    named: set[int] = set()
    for one in segments:
        if not one.HasField("position") or one.segment_id in named:
            raise BadRequest(f"segment {one.segment_id} needs one position")
        if len(one.position.ack_set) > ACK_WORDS_MAX:
            raise BadRequest(f"the position of segment {one.segment_id} names too many messages")
        named.add(one.segment_id)
        yield SegmentPosition(one.segment_id, position_of(one.position), tuple(one.position.ack_set))
