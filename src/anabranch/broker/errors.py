"""Errors of serving. `protocol.server_errors` maps their codes to wire numbers."""

from __future__ import annotations

from anabranch.model.errors import BadRequest, Busy, Error, LimitExceeded, NotAllowed, NotFound, NotReady
from anabranch.model.names import TopicName


class TopicNotFound(NotFound):
    code = "topic-not-found"


class TopicMigrated(NotFound):
    """The regular topic is a scalable topic now. Its code is one that stock clients treat as final."""

    code = "topic-migrated"

    def __init__(self, old_name: TopicName | str) -> None:
        self.migrated_to = str((TopicName.parse(old_name) if isinstance(old_name, str) else old_name).scalable)
        super().__init__(f"TopicMigrated: {old_name} is now {self.migrated_to}")


def migrated_to(error: Error) -> str | None:
    """The new name of the topic, if the error says that it was migrated."""
    return error.migrated_to if isinstance(error, TopicMigrated) else None


class TopicMigrating(Error):
    """The regular topic is being migrated, which may still be undone. Stock clients keep their connection and retry."""

    code, retryable = "topic-migrating", True


class FewerPartitions(BadRequest):
    """The number of partitions can only grow."""

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
    """Sticky hash ranges that are invalid or overlap those of another consumer."""

    code = "consumer-assign"


class ConsumerFenced(NotAllowed):
    """The consumer's assignment is outdated: the segment belongs, or will belong, to another consumer."""

    code = "consumer-fenced"


class ProducerBusy(Busy):
    code = "producer-busy"


class ProducerFenced(NotAllowed):
    code = "producer-fenced"


class TopicFenced(NotReady):
    """The topic is being closed or deleted here."""

    code = "topic-fenced"


class ClientMistake(Error):
    """The request names a producer or consumer that this connection does not have."""

    code = "metadata"


class TooManyRequests(LimitExceeded):
    code = "too-many-requests"


class IncompatibleSchema(NotAllowed):
    """The namespace's compatibility strategy forbids this schema after the existing versions."""

    code = "incompatible-schema"


class SchemaNotFound(NotFound):
    code = "schema-not-found"


class TooManySchemas(NotAllowed):
    code = "too-many-schemas"


class TooManyTopics(NotAllowed):
    """The namespace has as many topics as its policy allows."""

    code = "too-many-topics"


class NotOfThisKind(NotAllowed):
    """The operation does not exist for this kind of topic (partitioned, partition or non-persistent)."""

    code = "not-of-this-kind"


class NothingToDo(NotAllowed):
    code = "nothing-to-do"


class AlreadyRunning(Busy):
    code = "running"


class TooManyProducers(Busy):
    code = "producer-busy"


class TooManyConsumers(Busy):
    code = "consumer-busy"


class QuotaHold(NotAllowed):
    """The backlog quota is exceeded; the client may keep its messages and retry."""

    code = "quota-hold"
    retryable = True


class QuotaExceeded(NotAllowed):
    """The backlog quota is exceeded; the client reports it to the application at once."""

    code = "quota-exceeded"
    retryable = True
