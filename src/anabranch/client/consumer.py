"""What all consumers share: channels to partitions and segments, one inbox over them, receiving and closing.

Knows asyncio. Which channels there are is for the kinds to say (`queue_consumer`, `stream_consumer`,
`checkpoint_consumer`); what flows in one is decided by its `intake`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from anabranch.client.attachment import Attachment
from anabranch.client.channel import FAREWELL_SECONDS, Channel, ChannelSpec, Ground
from anabranch.client.errors import BadOption, ClientError, Closed
from anabranch.client.inbox import Inbox
from anabranch.client.message import Message, MessageId
from anabranch.client.policies import Seconds, seconds
from anabranch.client.schema import Schema
from anabranch.client.tutor import Tutor, on_wire
from anabranch.model.names import TopicName
from anabranch.runtime.tasks import TaskOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What every kind has. `prefetch` bounds what waits for the application, over all partitions and segments."""

    subscription: str
    name: str
    from_earliest: bool
    prefetch: int
    ack_group_s: float
    operation_timeout_s: float
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None


class Consumer:
    """Made by a client. Messages of one partition or segment come in their order; between them all have their turn."""

    def __init__(self, topics: Sequence[TopicName], options: ConsumerOptions, ground: Ground) -> None:
        self._topics = tuple(topics)
        self._options = options
        self._ground = ground
        self._tasks = TaskOwner("consumer")
        self._inbox: Inbox[Channel] = Inbox()
        self._channels: dict[tuple[str, int], Channel] = {}  # by topic and lane
        self._is_closed = False
        self._lessons = 0
        self._tutor = None if options.schema is None else Tutor(options.schema, ground, self._tasks)

    async def open(self, lanes: Mapping[TopicName, int]) -> Self:
        """`lanes`: number of partitions of every topic, 0 for one without."""
        try:
            for topic, count in lanes.items():
                for lane in range(count) if count else (-1,):
                    self._attach(self._spec(topic, lane))
            for channel in list(self._channels.values()):
                assert channel.attachment is not None
                await channel.attachment.wait_first(self._options.operation_timeout_s)
        except BaseException:
            await self.close(timeout=0)
            raise
        return self

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def topic(self) -> str:
        """The topic; of several, all with commas between them."""
        return ",".join(map(str, self._topics))

    @property
    def subscription(self) -> str:
        return self._options.subscription

    @property
    def name(self) -> str:
        return self._options.name

    async def receive(self, timeout: Seconds | None = None) -> Message | None:
        """The next message; None when there was none in time. Without `timeout` it waits as long as it takes."""
        found = self._inbox.take() or await self._inbox.wait(None if timeout is None else seconds(timeout))
        return None if found is None else self._hand_out(*found)

    async def receive_many(self, count: int, timeout: Seconds | None = None) -> list[Message]:
        """Waits for the first message, then takes what is there, at most `count`. Empty when there was none in time."""
        if count < 1:
            raise BadOption("receive_many takes at least 1")
        first = await self.receive(timeout)
        found = [] if first is None else [first]
        while found and len(found) < count and (more := self._inbox.take()):
            found.append(self._hand_out(*more))
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Ends when the consumer is closed."""
        try:
            message = await self.receive()
        except Closed as error:
            raise StopAsyncIteration from error
        assert message is not None
        return message

    async def close(self, timeout: Seconds | None = None) -> None:
        """Acknowledges nothing that the application did not; says what it did. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        self._inbox.fail(Closed("the consumer is closed"))
        timeout_s = FAREWELL_SECONDS if timeout is None else seconds(timeout)
        try:
            await asyncio.gather(*(channel.close(timeout_s) for channel in self._channels.values()))
        finally:
            await self._tasks.close()
            for channel in self._channels.values():
                channel.lost()

    # -- for the channels

    def arrived(self, channel: Channel, messages: Sequence[Message]) -> None:
        if self._tutor is not None:
            self._lessons += 1
            reason = f"schema {self._lessons}"  # what these were written with may have to be asked for
            if not self._tutor.prepare(messages, partial(self._inbox.release, channel, reason)):
                self._inbox.hold(channel, reason)
        self._inbox.arrived(channel, messages)

    def dropped(self, channel: Channel) -> list[MessageId]:
        return [message.id for message in self._inbox.drop(channel)]

    def ended(self, channel: Channel, error: ClientError) -> None:
        self._inbox.fail(error)

    def reached_end(self, channel: Channel) -> None:
        self._share()

    # -- for the kinds

    def _spec(self, topic: TopicName, lane: int) -> ChannelSpec:
        raise NotImplementedError

    def _hand_out(self, channel: Channel, message: Message) -> Message:
        """A message leaves for the application."""
        channel.taken()
        if self._tutor is not None:
            self._tutor.finish(message)
        return message

    def _attach(self, spec: ChannelSpec) -> Channel:
        """Starts; `channel.attachment` says how it goes."""
        if self._options.schema is not None:
            spec = replace(spec, schema=on_wire(self._options.schema))
        channel = Channel(spec, self, self._ground, self._options.prefetch)
        ground = self._ground
        channel.attachment = Attachment(channel, ground.pool, ground.backoff, ground.clock, ground.chance)
        self._channels[spec.identity, spec.lane] = channel
        self._share()
        self._tasks.spawn(channel.attachment.run(), spec.topic)
        return channel

    def _share(self) -> None:
        """The prefetch, divided among those who have something to bring."""
        busy = [channel for channel in self._channels.values() if not channel.is_at_end]
        window = max(1, self._options.prefetch // max(1, len(busy)))
        for channel in self._channels.values():
            channel.resize(1 if channel.is_at_end else window)

    def _channel_of(self, one: MessageId) -> Channel:
        if self._is_closed:
            raise Closed("the consumer is closed")
        channel = self._channels.get((one.topic, one.lane))
        if channel is None:
            raise BadOption(f"{one} is not a message of {self.topic}")
        return channel


def id_of(message: Message | MessageId) -> MessageId:
    return message.id if isinstance(message, Message) else message
