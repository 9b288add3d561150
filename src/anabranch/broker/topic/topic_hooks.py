"""What a special kind of topic adds to `Topic`: checks before an operation, and calls after it.

A segment of a scalable topic is such a kind. Regular topics use `NoTopicHooks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.subscription.consumer import SubscribeRequest
from anabranch.broker.subscription.subscription import Subscription


class TopicHooks(Protocol):
    """A `check_…` method raises when the operation is refused."""

    def before_load(self, *, deduplicate: bool) -> None:
        """The log is open; neither producers nor subscriptions are loaded."""

    def after_load(self) -> None: ...

    def accept_publishes(self, producer: Producer, publishes: Sequence[Publish]) -> Sequence[Publish]:
        """The publishes that may be stored, in their order. The hook answers the others."""

    def check_producer(self, producer: Producer) -> None:
        """Called before a producer is added, and when it is."""

    def producer_removed(self, producer: Producer) -> None: ...

    async def before_subscribe(self, request: SubscribeRequest) -> None:
        """Called before the subscription is looked up; may create it."""

    def check_attached(self, request: SubscribeRequest) -> None:
        """Called when the consumer is attached; an error detaches it again."""

    def subscription_made(self, subscription: Subscription) -> None: ...

    def check_create_subscription(self, name: str, *, durable: bool) -> None: ...

    def check_unsubscribe(self, name: str) -> None: ...

    def check_terminate(self) -> None: ...

    def closing(self) -> None:
        """The topic takes no requests from now on."""

    def tombstone(self) -> Mapping[str, str] | None:
        """Properties of the record that stays when the topic is deleted; None: nothing stays."""


class NoTopicHooks:
    """A regular topic."""

    def before_load(self, *, deduplicate: bool) -> None:
        return

    def after_load(self) -> None:
        return

    def accept_publishes(self, producer: Producer, publishes: Sequence[Publish]) -> Sequence[Publish]:
        return publishes

    def check_producer(self, producer: Producer) -> None:
        return

    def producer_removed(self, producer: Producer) -> None:
        return

    async def before_subscribe(self, request: SubscribeRequest) -> None:
        return

    def check_attached(self, request: SubscribeRequest) -> None:
        return

    def subscription_made(self, subscription: Subscription) -> None:
        return

    def check_create_subscription(self, name: str, *, durable: bool) -> None:
        return

    def check_unsubscribe(self, name: str) -> None:
        return

    def check_terminate(self) -> None:
        return

    def closing(self) -> None:
        return

    def tombstone(self) -> Mapping[str, str] | None:
        return None
