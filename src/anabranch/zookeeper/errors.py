"""Errors of the ZooKeeper client. Users of this package translate them once, at their adapter.

| error | was the request applied? |
|---|---|
| `ZooKeeperUnavailable` and its subclasses | no, or it was a read |
| `OutcomeUncertain` | unknown: the connection was lost after a write had been sent |
| `SessionExpired` | no; the session and its ephemeral nodes are gone |
| `ServerError` | no; `number` is the server's error code |
| `RequestTooLarge` | no; it was never sent |
"""

from __future__ import annotations

from enum import IntEnum

from anabranch.model.errors import Error


class Code(IntEnum):
    """Error codes of the server that this client or its users decide on."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2  # in a failed multi: another part caused the failure
    UNIMPLEMENTED = -6
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119


_KNOWN_CODES = frozenset(Code)


class ZooKeeperError(Error):
    """Root of the errors of this package."""

    code = "zookeeper-error"


class BadAddress(ZooKeeperError):
    """A server address that is not HOST, HOST:PORT or [IPv6]:PORT."""

    code = "zookeeper-bad-address"

    def __init__(self, written: str) -> None:
        super().__init__(f"{written!r} is not a ZooKeeper server; write HOST:PORT")
        self.written = written


class RequestTooLarge(ZooKeeperError):
    """The server would drop the connection on a request of this size, so it is not sent."""

    code = "zookeeper-request-too-large"


class ServerError(ZooKeeperError):
    """The server answered the request with an error code."""

    code = "zookeeper-refused"
    retryable = True

    def __init__(self, number: int) -> None:
        name = Code(number).name if number in _KNOWN_CODES else "error"
        super().__init__(f"ZooKeeper answered {name} ({number})")
        self.number = number


class SessionExpired(ZooKeeperError):
    """The session has ended; its ephemeral nodes are gone. Open a new connection."""

    code = "zookeeper-session-expired"


class OutcomeUncertain(ZooKeeperError):
    """A write was sent and not answered: read again before repeating it."""

    code = "zookeeper-outcome-unknown"
    retryable = True


class ZooKeeperUnavailable(ZooKeeperError):
    """No server can be reached, or none answered before the deadline."""

    code = "zookeeper-unavailable"
    retryable = True


class AccessRefused(ZooKeeperUnavailable):
    """Every server refused the TLS handshake or the credentials: repeating does not help."""

    code = "zookeeper-access-refused"
    retryable = False


class MalformedAnswer(ZooKeeperUnavailable):
    """Bytes from the server that are not a ZooKeeper answer."""

    code = "zookeeper-malformed-answer"


class ConnectionLost(ZooKeeperUnavailable):
    """The TCP connection ended before the answer arrived."""

    code = "zookeeper-connection-lost"


class NotApplied(ConnectionLost):
    """The server refused the request because the session has expired or moved to another server."""

    def __init__(self, text: str, *, is_expired: bool) -> None:
        super().__init__(text)
        self.is_expired = is_expired


class AnswerTimeout(ZooKeeperUnavailable):
    """The deadline passed before the answer arrived."""

    code = "zookeeper-timeout"
