"""What the SDK raises, and how a broker's refusal becomes one of these. Knows the wire's numbers, no connections.

`retryable` answers "has the same call, made again later, a chance?"; the SDK's own retries follow it, too.
"""

from __future__ import annotations

from anabranch.model.errors import Error
from anabranch.protocol.server_errors import ServerError


class ClientError(Error):
    """Root of what the SDK raises."""

    code = "client"


class BadServiceUrl(ClientError):
    """Not like pulsar://host:6650."""

    code = "bad-service-url"


class BadOption(ClientError):
    """An option that cannot be, whatever the broker says."""

    code = "bad-option"


class Unreachable(ClientError):
    """Nobody answers at the address, or nobody does any more."""

    code = "unreachable"
    retryable = True


class TimedOut(ClientError):
    """The deadline passed first; the outcome is unknown."""

    code = "timeout"
    retryable = True


class CannotSignIn(ClientError):
    """The token could not be had just now: its file or function failed."""

    code = "credentials"
    retryable = True


class WrongThread(ClientError):
    """A blocking call on the thread of the event loop that would have to serve it."""

    code = "wrong-thread"


class Closed(ClientError):
    """The client, producer or consumer was closed."""

    code = "closed"


class QueueFull(ClientError):
    """More is waiting for its receipt than `pending_bytes_max` allows."""

    code = "queue-full"
    retryable = True


class MessageTooLarge(ClientError):
    """Larger than the broker takes, and chunking is off (or it is larger than can be put together again)."""

    code = "message-too-large"

    def __init__(self, message_bytes: int, message_bytes_max: int) -> None:
        super().__init__(f"a message of {message_bytes} bytes; {message_bytes_max} is the most that the broker takes")
        self.message_bytes, self.message_bytes_max = message_bytes, message_bytes_max


class SchemaMismatch(ClientError):
    """A value that does not fit the producer's schema, or a message that the consumer's cannot read."""

    code = "schema-mismatch"


class Refused(ClientError):
    """The broker said no. `server_error` is its number on the wire."""

    code = "refused"
    server_error: int = int(ServerError.UnknownError)


class Unexplained(Refused):
    """The broker refused without a reason: mostly a fault of its own, or a moment in which the topic moves."""

    code = "unexplained"
    retryable = True


class NotReady(Refused):
    """The broker starts, stops, or gives the topic away."""

    code = "not-ready"
    retryable = True


class TopicNotFound(Refused):
    """There is no such topic, and it may not be created."""

    code = "topic-not-found"


class SubscriptionNotFound(Refused):
    """The topic has no such subscription."""

    code = "subscription-not-found"


class NotAuthenticated(Refused):
    """The broker does not know who we are: no token, or one that is wrong or expired."""

    code = "authentication"


class NotAuthorized(Refused):
    """The broker knows who we are, and our role may not do this."""

    code = "authorization"


class ProducerBusy(Refused):
    """A producer with this name is connected, or one has the topic for itself."""

    code = "producer-busy"
    retryable = True


class ProducerFenced(Refused):
    """Another producer has the topic for itself."""

    code = "producer-fenced"


class ConsumerBusy(Refused):
    """Somebody else has the subscription in a way that does not share it."""

    code = "consumer-busy"
    retryable = True


class ConsumerFenced(Refused):
    """The segment was given to another consumer since it was given to this one."""

    code = "consumer-fenced"


class TopicTerminated(Refused):
    """The topic has ended; nothing can be added to it."""

    code = "topic-terminated"


class IncompatibleSchema(Refused):
    """The schema does not fit the versions that the topic has; the text says where."""

    code = "incompatible-schema"


class QuotaExceeded(Refused):
    """The topic's backlog is at its limit; consumers must catch up first."""

    code = "quota-exceeded"
    retryable = True


class LimitExceeded(Refused):
    """Too many of something at once: requests, producers, consumers."""

    code = "limit-exceeded"
    retryable = True


class NotAllowed(Refused):
    """The broker does not do this, for anybody."""

    code = "not-allowed"


class NotSupported(Refused):
    """The broker is too old for this, or has it switched off."""

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


def refusal(number: int, text: str) -> Refused:
    """The error for a ServerError of the wire."""
    kind = _BY_NUMBER.get(number, Refused)
    error = kind(text or _name(number))
    error.server_error = number
    return error


def plain(error: Refused) -> Refused:
    """The same refusal, without a meaning that it does not have here."""
    made = Unexplained(error.reason)
    made.server_error = error.server_error
    return made


def _name(number: int) -> str:
    try:
        return ServerError.Name(number)
    except ValueError:  # a newer broker knows more reasons
        return f"server error {number}"
