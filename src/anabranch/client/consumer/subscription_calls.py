"""Calls of a consumer to the controller of a scalable topic that concern its whole subscription: seek, unsubscribe.

A call is repeated until its deadline while the controller is not reachable or another broker becomes the controller. It
has an operation id, so the repeated call does nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from anabranch.client.connection.address import Address
from anabranch.client.consumer.segment.batch_bits import ack_of, all_of
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.errors import BadOption, ClientError, ConsumerBusy, NotSupported, SubscriptionNotFound
from anabranch.client.messages.message import MessageId
from anabranch.client.messages.timestamps import Moment, milliseconds
from anabranch.client.topic.layout_watch import LayoutWatch
from anabranch.client.topic.topic_view import TopicView
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, BaseCommand
from anabranch.runtime.chance import secret_bytes
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

Target = Literal["earliest", "latest"] | Moment | MessageId
END_MS = U64_MASK >> 1
"""A publish time later than all others."""


class SubscriptionCalls:
    """Of one subscription."""

    def __init__(self, subscription: str, context: ClientContext) -> None:
        self._subscription, self._context = subscription, context

    async def seek(self, part: TopicPart, to: Target, deadline: float) -> int | None:
        """Returns the generation below which assignments were made before the seek. None: `to` says nothing about this
        topic. A seek of another consumer that is running is waited for."""
        if isinstance(to, MessageId):
            segments = list(positions(part.view, to))
            if not segments:
                return None
            fields: dict[str, Any] = {"segments": segments}
        else:
            fields = {"publish_time": publish_time(to)}
        answer = await self._call(part.watch, BaseCommand.SCALABLE_TOPIC_SEEK, deadline, (ConsumerBusy,), fields)
        return int(answer.generation)

    async def check_unused(self, watch: LayoutWatch, consumer: str, deadline: float) -> None:
        """Raises ConsumerBusy if other consumers than this one use the subscription."""
        fields = {"unless_used_besides": consumer}
        await self._call(watch, BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE, deadline, (), fields)

    async def unsubscribe(self, watch: LayoutWatch, deadline: float) -> None:
        try:
            await self._call(watch, BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE, deadline, (), {})
        except SubscriptionNotFound:
            pass  # the answer to an earlier attempt was lost, or another consumer deleted it

    async def _call(
        self,
        watch: LayoutWatch,
        kind: int,
        deadline: float,
        retried: tuple[type[ClientError], ...],
        fields: dict[str, Any],
    ) -> Any:
        """Errors that are retryable, and `retried` ones, are repeated until the deadline."""
        context, operation_id, failures = self._context, secret_bytes(8).hex(), 0
        while True:
            try:
                return await self._ask(watch, kind, deadline, operation_id=operation_id, **fields)
            except ClientError as error:
                delay_s = context.backoff.delay(failures, context.chance.random())
                left_s = deadline - context.clock.monotonic()
                if not (error.retryable or isinstance(error, retried)) or left_s <= delay_s:
                    raise
                failures += 1
                log.info(
                    "asking the topic's controller again",
                    extra={"topic": str(watch.topic), "reason": error.reason, "delay_s": delay_s},
                )
            watch.refresh()  # another broker may be the controller now
            await context.clock.sleep(delay_s)

    async def _ask(self, watch: LayoutWatch, kind: int, deadline: float, **fields: Any) -> Any:
        view, pool = watch.view, self._context.pool
        url = pool.address_of(view.controller.url, view.controller.url_tls)
        connection = await pool.connection(Address.parse(url) if url else None)
        if not connection.supports_seek:
            raise NotSupported(
                f"the broker of {view.topic} is not Anabranch, or an older version: it cannot move or delete the "
                "subscription of a scalable topic for a consumer"
            )
        timeout_s = max(0.0, min(pool.answer_timeout_s, deadline - self._context.clock.monotonic()))
        topic = str(view.topic.scalable)
        return await connection.ask(kind, timeout_s, topic=topic, subscription=self._subscription, **fields)


def check_known(to: MessageId, views: Iterable[TopicView], shown: str) -> None:
    """Raises unless a seek can go behind this message of one of the topics."""
    found = next((view for view in views if str(view.topic) == to.topic), None)
    if found is None:
        raise BadOption(f"{to} is not a message of {shown}")
    if found.is_synthetic:
        raise NotSupported(f"{to.topic} is a regular topic; seek it to 'earliest', 'latest' or a time")


def publish_time(to: str | Moment) -> int:
    """Raises BadOption."""
    if to == "earliest":
        return 0
    if to == "latest":
        return END_MS
    if isinstance(to, str):
        raise BadOption(f"seek goes to 'earliest', 'latest', a time or a message id, not to {to!r}")
    return milliseconds(to, "the time of seek")


def positions(view: TopicView, to: MessageId) -> Iterable[pb.SegmentProgress]:
    """The positions in this topic that the id and its `covers` name. Raises BadOption if a segment does not exist."""
    segments = {view.lane(segment): segment_id for segment_id, segment in view.layout.segments.items()}
    for one in (to, *to.covers):
        if one.topic != str(view.topic):
            continue
        if one.lane not in segments:
            raise BadOption(f"the segment of {one} does not exist in {view.topic}, or no longer")
        unread = all_of(one.batch_size) & ~((2 << one.batch_index) - 1) if one.batch_index >= 0 else 0
        position = ack_of((one.ledger, one.entry), -1, unread, one.batch_size)
        yield pb.SegmentProgress(segment_id=segments[one.lane], position=position)


def seek_fields(to: str | Moment) -> dict[str, Any]:
    """What SEEK says about a regular topic. The ends have the ids that Pulsar's clients use for them."""
    if to == "earliest":
        return {"message_id": pb.MessageIdData(ledgerId=U64_MASK, entryId=U64_MASK)}
    if to == "latest":
        return {"message_id": pb.MessageIdData(ledgerId=U64_MASK >> 1, entryId=U64_MASK >> 1)}
    if isinstance(to, str):
        raise BadOption(f"seek goes to 'earliest', 'latest' or a time, not to {to!r}")
    return {"message_publish_time": milliseconds(to, "the time of seek")}
