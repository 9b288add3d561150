"""The error root. Other layers map `code` to their own numbers.

Every expected failure is a subclass with a stable `code`, the same on the wire, in REST and in the CLI, and a
`retryable` flag: whether the same request may succeed later.
"""

from __future__ import annotations


class Error(Exception):
    """Root of all errors that Anabranch raises deliberately."""

    code: str = "error"
    retryable: bool = False

    @property
    def reason(self) -> str:
        return str(self) or self.code


class BadName(Error):
    """An invalid name of a topic, namespace, tenant or subscription."""

    code = "bad-name"


class BadRequest(Error):
    """The request is invalid in any state of the system."""

    code = "bad-request"


class NotAllowed(Error):
    """Well formed, but refused by a rule or policy."""

    code = "not-allowed"


class TooManySubscriptions(NotAllowed):
    """The topic has as many subscriptions as its policies allow."""

    code = "too-many-subscriptions"


class NotFound(Error):
    """The tenant, namespace, topic, subscription … does not exist."""

    code = "not-found"


class AlreadyExists(Error):
    """It exists already."""

    code = "already-exists"


class Busy(Error):
    """Another client or broker holds the resource."""

    code = "busy"
    retryable = True


class NotReady(Error):
    """Starting, stopping or moving; try again in a moment."""

    code = "not-ready"
    retryable = True


class LimitExceeded(Error):
    """A configured bound was reached."""

    code = "limit-exceeded"
    retryable = True
