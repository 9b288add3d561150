"""Errors of the SDK, and how an error of the broker becomes one of them.

`retryable` says whether the same call may succeed later. The SDK's own retries follow it, too.
"""

from __future__ import annotations

from anabranch.model.errors import Error
from anabranch.protocol.server_errors import ServerError


class ClientError(Error):
    """Root of the errors of the SDK."""

    code = "client"


class BadServiceUrl(ClientError):
    """The service URL is not of the form pulsar://host:6650."""

    code = "bad-service-url"


class BadOption(ClientError):
    """An argument or option is invalid, independent of the broker."""

    code = "bad-option"


class Unreachable(ClientError):
    """The broker cannot be reached, or the connection broke."""

    code = "unreachable"
    retryable = True


class TimedOut(ClientError):
    """No answer before the deadline; the outcome is unknown."""

    code = "timeout"
    retryable = True


class NotAwaited(ClientError, AttributeError):
    """The result of `connect` or of `client.producer(…)` was used without `await` or `async with`."""

    code = "not-awaited"


class HandshakeFailed(ClientError):
    """A new connection cannot work, because of the address, the certificates or the credentials. Final when a client,
    producer or consumer opens; afterwards it reconnects with backoff, because an operator may correct the cause."""

    code = "handshake-failed"


class TlsFailed(HandshakeFailed):
    """The TLS handshake failed: one side does not accept the certificate or the TLS version of the other."""

    code = "tls"


class WrongPort(HandshakeFailed):
    """The port has another protocol: HTTP, TLS where the URL has none, or no TLS where the URL has it."""

    code = "wrong-port"


class TokenUnreadable(HandshakeFailed):
    """The token file is missing, empty or cannot be read."""

    code = "token-unreadable"


class CannotSignIn(ClientError):
    """The function that returns the token failed."""

    code = "credentials"
    retryable = True


class WrongThread(ClientError):
    """A blocking call on the thread of the event loop that would have to serve it."""

    code = "wrong-thread"


class Closed(ClientError):
    """The client, producer or consumer was closed."""

    code = "closed"


class QueueFull(ClientError):
    """More bytes wait for receipts than `pending_bytes_max` allows."""

    code = "queue-full"
    retryable = True


class MessageTooLarge(ClientError):
    """The message exceeds the broker's limit and chunking is off, or it exceeds the limit for chunked messages."""

    code = "message-too-large"

    def __init__(self, message_bytes: int, message_bytes_max: int) -> None:
        super().__init__(f"the message has {message_bytes} bytes, the limit is {message_bytes_max}")
        self.message_bytes, self.message_bytes_max = message_bytes, message_bytes_max


class UnusableKey(ClientError):
    """A key for encryption is missing, unreadable, too large or of a kind that is not supported."""

    code = "unusable-key"


class KeyUnavailable(ClientError):
    """The function that returns keys for encryption failed, or did not answer in time."""

    code = "key-unavailable"
    retryable = True


class DecryptionFailed(ClientError):
    """A message cannot be decrypted: the consumer has no private key of a recipient, or the data is damaged."""

    code = "decryption-failed"


class SchemaMismatch(ClientError):
    """A value does not fit the producer's schema, or the consumer's schema cannot decode a message."""

    code = "schema-mismatch"


class HandlerFailed(ClientError):
    """The handler of `run` raised on every attempt for one message; `__cause__` is its last error."""

    code = "handler-failed"

    def __init__(self, topic: str, message_id: str, error: str) -> None:
        super().__init__(f"the handler failed on every attempt for message {message_id} of {topic}, last with {error}")
        self.topic, self.message_id = topic, message_id


class Unfinished(ClientError):
    """`run` ended before all messages that it had received were processed; close the consumer to get them again."""

    code = "unfinished"


class Refused(ClientError):
    """The broker refused a request. `server_error` is the error number on the wire."""

    code = "refused"
    server_error: int = int(ServerError.UnknownError)


class Unexplained(Refused):
    """The broker refused with an unknown error: usually a fault inside the broker, or the topic is being moved."""

    code = "unexplained"
    retryable = True


class NotReady(Refused):
    """The broker is starting or stopping, or the topic is being moved."""

    code = "not-ready"
    retryable = True


class TopicNotFound(Refused):
    """The topic does not exist and may not be created."""

    code = "topic-not-found"


class SubscriptionNotFound(Refused):
    """The topic does not have this subscription."""

    code = "subscription-not-found"


class NotAuthenticated(Refused):
    """Authentication failed: no credentials, or they are wrong or expired."""

    code = "authentication"


class NotAuthorized(Refused):
    """The authenticated role does not have the permission."""

    code = "authorization"


class ProducerBusy(Refused):
    """A producer with this name is connected, or another producer has exclusive access."""

    code = "producer-busy"
    retryable = True


class ProducerFenced(Refused):
    """Another producer has taken exclusive access to the topic."""

    code = "producer-fenced"


class ConsumerBusy(Refused):
    """Another consumer has the subscription exclusively."""

    code = "consumer-busy"
    retryable = True


class ConsumerFenced(Refused):
    """The segment has been assigned to another consumer."""

    code = "consumer-fenced"


class ConsumerReplaced(ConsumerFenced):
    """Another consumer with the same name has taken over the session of this one; give each a different name."""

    code = "consumer-replaced"


class TopicTerminated(Refused):
    """The topic is terminated; no messages can be published."""

    code = "topic-terminated"


class TopicMigrated(TopicNotFound):
    """The regular topic is a scalable topic now. `migrated_to` is its name."""

    code = "topic-migrated"
    migrated_to = ""


class IncompatibleSchema(Refused):
    """The schema is not compatible with the versions of the topic; the text says where."""

    code = "incompatible-schema"


class QuotaExceeded(Refused):
    """There is no room: the topic's backlog quota is exceeded, or the broker's disk is full; the text says which."""

    code = "quota-exceeded"
    retryable = True


class LimitExceeded(Refused):
    """A limit of the broker is reached: concurrent requests, producers or consumers."""

    code = "limit-exceeded"
    retryable = True


class NotAllowed(Refused):
    """The broker does not allow this operation."""

    code = "not-allowed"


class NotSupported(Refused):
    """The broker does not support this, or has it switched off."""

    code = "not-supported"


_BY_NUMBER: dict[int, type[Refused]] = {
    ServerError.UnknownError: Unexplained,
    ServerError.MetadataError: NotReady,
    ServerError.PersistenceError: NotReady,
    ServerError.ServiceNotReady: NotReady,
    ServerError.TooManyRequests: LimitExceeded,
    ServerError.TopicNotFound: TopicNotFound,
    ServerError.SubscriptionNotFound: SubscriptionNotFound,
    ServerError.AuthenticationError: NotAuthenticated,
    ServerError.AuthorizationError: NotAuthorized,
    ServerError.ProducerBusy: ProducerBusy,
    ServerError.ProducerFenced: ProducerFenced,
    ServerError.ConsumerBusy: ConsumerBusy,
    ServerError.ConsumerAssignError: ConsumerFenced,
    ServerError.TopicTerminatedError: TopicTerminated,
    ServerError.IncompatibleSchema: IncompatibleSchema,
    ServerError.ProducerBlockedQuotaExceededError: QuotaExceeded,
    ServerError.ProducerBlockedQuotaExceededException: QuotaExceeded,
    ServerError.NotAllowedError: NotAllowed,
    ServerError.UnsupportedVersionError: NotSupported,
}


def refusal(number: int, text: str, migrated_to: str = "") -> Refused:
    """The error for a ServerError number on the wire."""
    kind = _BY_NUMBER.get(number, Refused)
    error: Refused
    if migrated_to:
        error = migrated = TopicMigrated(text)
        migrated.migrated_to = migrated_to
    else:
        error = kind(text or _name(number))
    error.server_error = number
    return error


def plain(error: Refused) -> Refused:
    """The same refusal as `Unexplained`, for brokers that use the number with another meaning."""
    made = Unexplained(error.reason)
    made.server_error = error.server_error
    return made


def _name(number: int) -> str:
    try:
        return ServerError.Name(number)
    except ValueError:  # of a newer broker
        return f"server error {number}"
