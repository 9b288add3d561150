"""Errors of serving. Their wire numbers come from their codes (`protocol.server_errors`); no sockets, no storage."""

from __future__ import annotations

from anabranch.model.errors import BadRequest, Busy, Error, LimitExceeded, NotAllowed, NotFound, NotReady


class TopicNotFound(NotFound):
    code = "topic-not-found"


class FewerPartitions(BadRequest):
    """Partitions can be added, never taken away."""

    code = "fewer-partitions"


class NamespaceNotFound(NotFound):
    code = "namespace-not-found"


class SubscriptionNotFound(NotFound):
    code = "subscription-not-found"


class ConsumerNotFound(NotFound):
    code = "consumer-not-found"


class TopicTerminated(NotAllowed):
    code = "topic-terminated"


class ConsumerBusy(Busy):
    code = "consumer-busy"


class ConsumerAssignFailed(NotAllowed):
    """Sticky hash ranges that overlap somebody else's or make no sense."""

    code = "consumer-assign"


class ConsumerFenced(NotAllowed):
    """The assignment that the consumer attaches under is over: the segment is, or will be, another's."""

    code = "consumer-fenced"


class ProducerBusy(Busy):
    code = "producer-busy"


class ProducerFenced(NotAllowed):
    code = "producer-fenced"


class TopicFenced(NotReady):
    """The topic is being closed or deleted here."""

    code = "topic-fenced"


class ClientMistake(Error):
    """The request refers to something this connection does not have."""

    code = "metadata"


class TooManyRequests(LimitExceeded):
    code = "too-many-requests"


class IncompatibleSchema(NotAllowed):
    """What the namespace's strategy forbids after the versions there are."""

    code = "incompatible-schema"


class SchemaNotFound(NotFound):
    code = "schema-not-found"


class TooManySchemas(NotAllowed):
    code = "too-many-schemas"


class TooManyTopics(NotAllowed):
    """The namespace's policy allows no more."""

    code = "too-many-topics"


class NotOfThisKind(NotAllowed):
    """Asked of a partitioned topic, a non-persistent one or a partition, which have no such thing."""

    code = "not-of-this-kind"


class NothingToDo(NotAllowed):
    code = "nothing-to-do"


class AlreadyRunning(Busy):
    code = "running"


class TooManyProducers(Busy):
    code = "producer-busy"


class TooManyConsumers(Busy):
    code = "consumer-busy"


class TooManySubscriptions(NotAllowed):
    code = "too-many-subscriptions"


class QuotaHold(NotAllowed):
    """The backlog quota is used up; the client may keep its messages and come back."""

    code = "quota-hold"
    retryable = True


class QuotaExceeded(NotAllowed):
    """The backlog quota is used up; the application is told at once."""

    code = "quota-exceeded"
    retryable = True
