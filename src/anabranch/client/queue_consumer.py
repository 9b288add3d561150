"""Queue consumers: messages of all partitions and segments, shared with every other consumer of the subscription."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.client.channel import Channel, ChannelSpec, Ground
from anabranch.client.consumer import Consumer, ConsumerOptions, id_of
from anabranch.client.message import Message, MessageId
from anabranch.client.policies import Seconds, seconds
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(ConsumerOptions):
    nack_delay_s: float = 60.0


class QueueConsumer(Consumer):
    """Shares the messages with every other queue consumer of the subscription; acks are individual."""

    def __init__(self, topics: tuple[TopicName, ...], options: QueueOptions, ground: Ground) -> None:
        super().__init__(topics, options, ground)
        self._queue = options

    async def ack(self, message: Message | MessageId) -> None:
        """Done with it. Said to the broker within moments, at the latest by `close`; repeated until confirmed."""
        one = id_of(message)
        self._channel_of(one).ack(one)

    async def nack(self, message: Message | MessageId, delay: Seconds | None = None) -> None:
        """Deliver it again, to whomever, after `delay` (otherwise the consumer's `nack_delay`)."""
        one = id_of(message)
        channel = self._channel_of(one)
        delay_s = self._queue.nack_delay_s if delay is None else seconds(delay)
        if delay_s <= 0:
            channel.redeliver([one])
        else:
            self._tasks.spawn(self._release_later(channel, one, delay_s), "nack")

    async def _release_later(self, channel: Channel, one: MessageId, delay_s: float) -> None:
        await self._ground.clock.sleep(delay_s)
        channel.redeliver([one])

    def _spec(self, topic: TopicName, lane: int) -> ChannelSpec:
        return ChannelSpec(
            topic=str(topic.partition(lane)) if lane >= 0 else str(topic),
            identity=str(topic),
            lane=lane,
            segment_id=max(lane, 0),
            partition=lane,
            subscription=self._options.subscription,
            sub_type=pb.CommandSubscribe.Shared,
            consumer_name=self._options.name,
            from_earliest=self._options.from_earliest,
            properties=self._options.properties,
            subscription_properties=self._options.subscription_properties,
            ack_group_s=self._options.ack_group_s,
        )
