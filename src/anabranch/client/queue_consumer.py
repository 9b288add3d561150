"""Queue consumers: messages of all partitions and segments, shared with every other consumer of the subscription."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.client.channel import Channel, Ground
from anabranch.client.consumer import Consumer, ConsumerOptions, TopicPart, id_of
from anabranch.client.contents import Parcel
from anabranch.client.message import Message, MessageId
from anabranch.client.message_batch import MessageBatch
from anabranch.client.policies import Seconds, seconds
from anabranch.client.topic_view import TopicView
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(ConsumerOptions):
    nack_delay_s: float = 60.0


class QueueConsumer(Consumer):
    """Shares the messages with every other queue consumer of the subscription; acks are individual."""

    def __init__(self, topics: Sequence[TopicName], options: QueueOptions, ground: Ground) -> None:
        super().__init__(topics, options, ground)
        self._queue = options

    async def ack(self, message: Message | MessageId | MessageBatch) -> None:
        """Done with it. Said to the broker within moments, at the latest by `close`; repeated until confirmed."""
        if isinstance(message, MessageBatch):
            self._ack_batch(message)
            return
        one = id_of(message)
        channel = self._channel_of(one)
        if channel is not None:
            channel.ack(one)

    def _ack_batch(self, batch: MessageBatch) -> None:
        for part in batch.parts:
            if isinstance(part, Parcel):
                if (channel := self._channel_of(part.last)) is not None:
                    channel.ack_parcel(part)
                continue
            for message in part:
                if (channel := self._channel_of(message.id)) is not None:
                    channel.ack(message.id)

    async def nack(self, message: Message | MessageId, delay: Seconds | None = None) -> None:
        """Deliver it again, to whomever, after `delay` (otherwise the consumer's `nack_delay`)."""
        one = id_of(message)
        channel = self._channel_of(one)
        delay_s = self._queue.nack_delay_s if delay is None else seconds(delay)
        if channel is None:
            return
        if delay_s <= 0:
            channel.redeliver([one])
        else:
            self._tasks.spawn(self._release_later(channel, one, delay_s), "nack")

    async def _release_later(self, channel: Channel, one: MessageId, delay_s: float) -> None:
        await self._ground.clock.sleep(delay_s)
        channel.redeliver([one])

    def _seen(self, part: TopicPart, view: TopicView) -> None:
        """Attached to every segment there is, sealed ones too: late acks and seeks reach them until they are gone."""
        is_another = view.generation != part.view.generation
        part.view = view
        for segment_id, channel in list(part.channels.items()):
            if is_another or segment_id not in view.layout:
                self._detach(part, channel)
        for segment_id, segment in view.layout.segments.items():
            if segment_id not in part.channels:
                spec = self._spec(part, segment, pb.CommandSubscribe.Shared)
                self._attach(part, Channel(spec, self, self._ground, self._options.prefetch))
