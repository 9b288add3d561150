"""Stream consumers: every key in order, acknowledged cumulatively."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.client.channel import Channel, ChannelSpec, Ground
from anabranch.client.consumer import Consumer, ConsumerOptions, id_of
from anabranch.client.delivery import DeliveryLog
from anabranch.client.message import Message, MessageId
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb


class StreamConsumer(Consumer):
    """Every key in order, acknowledged cumulatively. Of several with one subscription, each partition has one."""

    def __init__(self, topics: Sequence[TopicName], options: ConsumerOptions, ground: Ground) -> None:
        super().__init__(topics, options, ground)
        self._log: DeliveryLog[Channel] = DeliveryLog()

    def _hand_out(self, channel: Channel, message: Message) -> Message:
        message.delivery = self._log.handed_out(channel, message.id)
        return super()._hand_out(channel, message)

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        """Everything this consumer handed out up to and including `message`, of all partitions. With a bare id it
        covers that id's partition only."""
        one = id_of(message)
        channel = self._channel_of(one)
        covered = {channel: one}
        if isinstance(message, Message) and message.delivery > 0:
            covered = self._log.covered(message.delivery, channel, one)
        for where, last in covered.items():
            where.ack_cumulative(last)

    def _spec(self, topic: TopicName, lane: int) -> ChannelSpec:
        return ChannelSpec(
            topic=str(topic.partition(lane)) if lane >= 0 else str(topic),
            identity=str(topic),
            lane=lane,
            segment_id=max(lane, 0),
            partition=lane,
            subscription=self._options.subscription,
            sub_type=pb.CommandSubscribe.Failover,
            consumer_name=self._options.name,
            from_earliest=self._options.from_earliest,
            properties=self._options.properties,
            subscription_properties=self._options.subscription_properties,
            ack_group_s=self._options.ack_group_s,
        )
