"""Permissions that commands and HTTP routes require.

A command or route without a rule here (or in its `Route`) is refused to all but super-users. A test fails when one has
no rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from anabranch.protocol.commands import BaseCommand
from anabranch.security.authorization import Action


class Scope(StrEnum):
    """Where the resource of a request is named."""

    BROKER = "broker"  # the whole broker
    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"  # of a topic
    BODY_TOPICS = "body-topics"  # several topics, in the request's body


@dataclass(frozen=True, slots=True)
class Need:
    action: Action
    scope: Scope = Scope.BROKER


OPEN = Need(Action.OPEN)
SIGNED_IN = Need(Action.SIGNED_IN)
SUPERVISE = Need(Action.SUPERVISE)
TENANT_ADMIN = Need(Action.ADMINISTER, Scope.TENANT)
NAMESPACE_ADMIN = Need(Action.ADMINISTER, Scope.NAMESPACE)
NAMESPACE_LIST = Need(Action.LIST, Scope.NAMESPACE)
TOPIC_ADMIN = Need(Action.ADMINISTER, Scope.TOPIC)
TOPIC_LOOKUP = Need(Action.LOOKUP, Scope.TOPIC)
TOPIC_PRODUCE = Need(Action.PRODUCE, Scope.TOPIC)
TOPIC_CONSUME = Need(Action.CONSUME, Scope.TOPIC)
SUBSCRIPTION_CONSUME = Need(Action.CONSUME, Scope.SUBSCRIPTION)
BODY_TOPICS_ADMIN = Need(Action.ADMINISTER, Scope.BODY_TOPICS)


@dataclass(frozen=True, slots=True)
class Covered:
    """Acts only on a producer or consumer of the same connection, which needed `need` to be opened.

    Revoking a grant closes what it opened, at every broker. UNSUBSCRIBE and SEEK cannot be undone, so they are checked
    each time.
    """

    need: Need


COMMAND_NEEDS: dict[int, Need | Covered] = {
    int(kind): need
    for kind, need in (
        (BaseCommand.AUTH_RESPONSE, SIGNED_IN),
        (BaseCommand.LOOKUP, TOPIC_LOOKUP),
        (BaseCommand.PARTITIONED_METADATA, TOPIC_LOOKUP),
        (BaseCommand.GET_TOPICS_OF_NAMESPACE, NAMESPACE_LIST),
        (BaseCommand.WATCH_TOPIC_LIST, NAMESPACE_LIST),
        (BaseCommand.WATCH_TOPIC_LIST_CLOSE, Covered(NAMESPACE_LIST)),
        (BaseCommand.WATCH_SCALABLE_TOPICS, NAMESPACE_LIST),
        (BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE, Covered(NAMESPACE_LIST)),
        (BaseCommand.GET_SCHEMA, TOPIC_LOOKUP),
        (BaseCommand.TOPIC_EXTENT, TOPIC_LOOKUP),
        (BaseCommand.GET_OR_CREATE_SCHEMA, TOPIC_PRODUCE),
        (BaseCommand.PRODUCER, TOPIC_PRODUCE),  # with an initial subscription also SUBSCRIPTION_CONSUME
        (BaseCommand.SEND, Covered(TOPIC_PRODUCE)),
        (BaseCommand.CLOSE_PRODUCER, Covered(TOPIC_PRODUCE)),
        (BaseCommand.SUBSCRIBE, SUBSCRIPTION_CONSUME),
        (BaseCommand.FLOW, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.ACK, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.UNSUBSCRIBE, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.SEEK, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.GET_LAST_MESSAGE_ID, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.CONSUMER_STATS, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.CLOSE_CONSUMER, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.SCALABLE_TOPIC_LOOKUP, TOPIC_LOOKUP),
        (BaseCommand.SCALABLE_TOPIC_CLOSE, Covered(TOPIC_LOOKUP)),
        (BaseCommand.SCALABLE_TOPIC_SUBSCRIBE, SUBSCRIPTION_CONSUME),
        (BaseCommand.SCALABLE_TOPIC_SEEK, SUBSCRIPTION_CONSUME),
        (BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE, SUBSCRIPTION_CONSUME),
        (BaseCommand.SEGMENT_RELEASE, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.SCALABLE_TOPIC_LEAVE, Covered(SUBSCRIPTION_CONSUME)),
        (BaseCommand.CHECKPOINT_PROGRESS, Covered(SUBSCRIPTION_CONSUME)),
    )
}
