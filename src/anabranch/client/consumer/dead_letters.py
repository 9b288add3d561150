"""Dead letters: messages that were redelivered too often are copied to another topic.

The copy keeps value, key, properties and event time, and names its origin in properties. The original is acknowledged
only after the copy is stored, so nothing is lost in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from anabranch.client.config import DeadLetter
from anabranch.client.errors import ClientError
from anabranch.client.messages.message import Message
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


class Sender(Protocol):
    """The methods of a producer that are used here."""

    async def send(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
    ) -> object: ...

    async def close(self, timeout: float | None = None) -> None: ...


OpenSender = Callable[[str], Awaitable[Sender]]


def dead_letter_topic(policy: DeadLetter, source: str, subscription: str) -> str:
    """The policy's topic, or a topic beside the source. For regular topics the name is Pulsar's."""
    if policy.topic is not None:
        return policy.topic
    name = TopicName.parse(source)
    local = f"{name.local}-DLQ" if name.domain is Domain.TOPIC else f"{name.local}-{subscription}-DLQ"
    return str(TopicName.parse(f"{name.domain}://{name.tenant}/{name.namespace}/{local}"))


def provenance(message: Message, subscription: str) -> dict[str, str]:
    """The properties of the copy."""
    origin = {
        REAL_TOPIC: message.topic,
        REAL_SUBSCRIPTION: subscription,
        ORIGIN_MESSAGE_ID: str(message.id),
    }
    return {**message.properties, **{name: text for name, text in origin.items() if name not in message.properties}}


class DeadLetters:
    def __init__(self, policy: DeadLetter, subscription: str, opener: OpenSender) -> None:
        self._policy = policy
        self._subscription = subscription
        self._opener = opener
        self._senders: dict[str, Sender] = {}
        self._opening = asyncio.Lock()

    def takes(self, message: Message) -> bool:
        """True if the message was redelivered more often than allowed."""
        return message.redelivery_count > self._policy.max_redeliveries

    async def send(self, message: Message) -> bool:
        """Store the copy. Returns False if that failed; the original must not be acknowledged then."""
        topic = dead_letter_topic(self._policy, message.topic, self._subscription)
        try:
            sender = await self._sender(topic)
            await sender.send(
                None if message.is_tombstone and message.key is not None else message.data,
                key=message.key,
                properties=provenance(message, self._subscription),
                event_time=message.event_time,
            )
        except ClientError as error:
            log.warning(
                "dead letter could not be stored, its message is redelivered",
                extra={"topic": topic, "reason": error.reason},
            )
            return False
        return True

    async def _sender(self, topic: str) -> Sender:
        async with self._opening:  # a failure is not cached: the next message tries again
            if topic not in self._senders:
                self._senders[topic] = await self._opener(topic)
            return self._senders[topic]

    async def close(self, timeout_s: float) -> None:
        await asyncio.gather(*(sender.close(timeout_s) for sender in self._senders.values()))
