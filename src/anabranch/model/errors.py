"""The one error root. Knows nothing of wires, files or HTTP: those floors map `code` to their own numbers.

Every expected failure of the system is a subclass with a stable `code` (the same word on the wire, in REST and in the
CLI) and a `retryable` flag: "will the same request, sent again later, have a chance?"
"""

from __future__ import annotations


class Error(Exception):
    """Root of everything Anabranch raises on purpose."""

    code: str = "error"
    retryable: bool = False

    @property
    def reason(self) -> str:
        return str(self) or self.code


class BadName(Error):
    """A topic, namespace, tenant or subscription name that cannot be."""

    code = "bad-name"


class BadRequest(Error):
    """The request makes no sense whatever the state of the system."""

    code = "bad-request"


class NotAllowed(Error):
    """Well formed, but refused by rule or policy."""

    code = "not-allowed"


class NotFound(Error):
    """Tenant, namespace, topic, subscription … is not there."""

    code = "not-found"


class AlreadyExists(Error):
    """Somebody created it first."""

    code = "already-exists"


class Busy(Error):
    """Somebody else holds what was asked for."""

    code = "busy"
    retryable = True


class NotReady(Error):
    """Starting, stopping or moving; look again in a moment."""

    code = "not-ready"
    retryable = True


class LimitExceeded(Error):
    """A configured bound was reached."""

    code = "limit-exceeded"
    retryable = True
