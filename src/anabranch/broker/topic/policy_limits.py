"""Limits of a namespace's policies as checks that raise. Pure."""

from __future__ import annotations

from anabranch.broker.catalog.policies import Policies
from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.errors import TooManyConsumers, TooManyProducers
from anabranch.broker.subscription.consumer import ConsumerSpec
from anabranch.broker.subscription.entry_metadata import deliver_at_of
from anabranch.broker.token_bucket import SubscribeRates
from anabranch.model.errors import NotAllowed, TooManySubscriptions
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST
from anabranch.model.subscription_type import SubscriptionType
from anabranch.storage.interface import Payload
from anabranch.storage.topic.topic_log import StoredEntry


def check_producer(policies: Policies, attached: int, topic: TopicName) -> None:
    if 0 < policies.producers_max <= attached:
        raise TooManyProducers(f"Topic {topic} reached max producers limit {policies.producers_max}")


def check_consumer(policies: Policies, on_topic: int, on_subscription: int, topic: TopicName) -> None:
    if 0 < policies.consumers_max <= on_topic:
        raise TooManyConsumers(f"Topic {topic} reached max consumers limit {policies.consumers_max}")
    if 0 < policies.consumers_per_subscription_max <= on_subscription:
        raise TooManyConsumers(f"Subscription reached max consumers limit {policies.consumers_per_subscription_max}")


def check_subscription(policies: Policies, kind: SubscriptionType | None, known: int | None, topic: TopicName) -> None:
    """`kind`: of the new consumer. `known`: existing subscriptions, if one more is to be created."""
    if kind is not None and kind not in policies.subscription_types:
        raise NotAllowed(f"Topic {topic} doesn't support {kind.label} subscriptions")
    if known is not None and 0 < policies.subscriptions_max <= known:
        raise TooManySubscriptions(
            f"Exceed the maximum number of subscriptions of the topic {topic}: {policies.subscriptions_max}"
        )


def check_subscribe_rate(rates: SubscribeRates, peer: ClientConnection, spec: ConsumerSpec, now: float) -> None:
    """Consumers are identified by host, name and id, so a reconnect counts as the same consumer."""
    host = peer.address.rpartition(":")[0]
    if not rates.admits(f"{host}/{spec.name}/{spec.consumer_id}", now):
        raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")


def refusal_of(policies: Policies, payload: Payload, now_ms: int) -> str | None:
    """Why an entry is not accepted; None: it is."""
    longest, largest = policies.delay_ms_max, policies.message_bytes_max
    if largest and len(payload) > largest:
        return f"Exceed maximum message size: the topic accepts {largest} bytes, this entry has {len(payload)}"
    if longest and deliver_at_of(StoredEntry(EARLIEST, 1, payload)) - now_ms > longest:
        return f"Exceeds max allowed delivery delay of {longest} milliseconds"
    return None
