"""Maps `Error.code` to the numbers of the wire's ServerError."""

from __future__ import annotations

from anabranch.model.errors import Error
from anabranch.protocol.pulsar_pb2 import ServerError

__all__ = ["SERVER_ERROR_BY_CODE", "ServerError", "is_cpp", "refusal_code", "server_error"]

# Chosen by the reaction of stock clients: the C++ client retries InvalidTopicName and MetadataError until its operation
# times out, but reports NotAllowedError at once, so permanent failures are NotAllowedError.
SERVER_ERROR_BY_CODE: dict[str, ServerError] = {
    "error": ServerError.UnknownError,
    "bad-name": ServerError.NotAllowedError,
    "bad-request": ServerError.NotAllowedError,
    "not-allowed": ServerError.NotAllowedError,
    "already-exists": ServerError.NotAllowedError,
    "not-found": ServerError.TopicNotFound,
    "topic-not-found": ServerError.TopicNotFound,
    "topic-not-migrated": ServerError.TopicNotFound,
    "topic-migrated": ServerError.TopicNotFound,
    # Stock clients retry after this error and keep their connection; the migration may still be undone.
    "topic-migrating": ServerError.MetadataError,
    "subscription-not-found": ServerError.SubscriptionNotFound,
    "consumer-not-found": ServerError.ConsumerNotFound,
    "busy": ServerError.ConsumerBusy,
    "consumer-busy": ServerError.ConsumerBusy,
    "producer-busy": ServerError.ProducerBusy,
    "producer-fenced": ServerError.ProducerFenced,
    "consumer-assign": ServerError.ConsumerAssignError,
    "consumer-fenced": ServerError.ConsumerAssignError,  # sent to Anabranch clients only; they drop that assignment
    "not-ready": ServerError.ServiceNotReady,
    "limit-exceeded": ServerError.TooManyRequests,
    "quota-hold": ServerError.ProducerBlockedQuotaExceededError,
    "quota-exceeded": ServerError.ProducerBlockedQuotaExceededException,
    "topic-terminated": ServerError.TopicTerminatedError,
    "incompatible-schema": ServerError.IncompatibleSchema,
    "bad-schema": ServerError.IncompatibleSchema,
    "metadata": ServerError.MetadataError,
    # Stock clients retry after this error and keep their connection; ServiceNotReady would make them drop it.
    "metadata-unavailable": ServerError.MetadataError,
    "storage": ServerError.PersistenceError,
    # Stock clients retry PersistenceError until their timeout and then report a timeout; this error they report at
    # once.
    "storage-full": ServerError.ProducerBlockedQuotaExceededException,
    "fenced": ServerError.ServiceNotReady,
    "checksum": ServerError.ChecksumError,
    "authentication": ServerError.AuthenticationError,
    "authorization": ServerError.AuthorizationError,
    "unsupported-version": ServerError.UnsupportedVersionError,
    "protocol": ServerError.NotAllowedError,
}


def refusal_code(client_version: str) -> ServerError:
    """The error that makes a client give up one message and continue with the others.

    The C++ client, and Python's, which is built on it, knows only one such error. After any other one it reconnects and
    sends the same message again, for ever.
    """
    return ServerError.ChecksumError if is_cpp(client_version) else ServerError.NotAllowedError


def is_cpp(client_version: str) -> bool:
    """Whether it is the C++ client, or one that is built on it (Python, Node)."""
    return "CPP" in client_version


def server_error(error: Error) -> ServerError:
    """The wire's number for an error: that of its code, or of the nearest ancestor whose code has one."""
    known = SERVER_ERROR_BY_CODE.get(error.code)
    if known is not None:
        return known
    for ancestor in type(error).__mro__:
        if issubclass(ancestor, Error) and ancestor.code in SERVER_ERROR_BY_CODE:
            return SERVER_ERROR_BY_CODE[ancestor.code]
    return ServerError.UnknownError
