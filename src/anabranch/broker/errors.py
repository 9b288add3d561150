"""Errors of serving, and which Pulsar `ServerError` each one is on the wire. Knows no sockets and no storage."""

from __future__ import annotations

from anabranch.model.errors import Busy, Error, LimitExceeded, NotAllowed, NotFound, NotReady


class TopicNotFound(NotFound):
    code = "topic-not-found"


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


WIRE: dict[str, int] = {
    "error": 0,
    "metadata": 1,
    "storage": 2,
    "storage-full": 2,
    "fenced": 6,
    "authentication": 3,
    "authorization": 4,
    "consumer-busy": 5,
    "busy": 5,
    "not-ready": 6,
    "topic-fenced": 6,
    "checksum": 9,
    "topic-not-found": 11,
    "namespace-not-found": 11,
    "not-found": 11,
    "subscription-not-found": 12,
    "consumer-not-found": 13,
    "too-many-requests": 14,
    "limit-exceeded": 14,
    "topic-terminated": 15,
    "producer-busy": 16,
    # Stock clients retry InvalidTopicName until their timeout; NotAllowedError tells the user at once.
    "bad-name": 22,
    "consumer-assign": 19,
    "not-allowed": 22,
    "bad-request": 22,
    "producer-fenced": 25,
}
"""`Error.code` → `ServerError`. Whatever is not listed is UnknownError (0)."""


def wire_code(error: Error) -> int:
    return WIRE.get(error.code, 0)
