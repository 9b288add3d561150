"""Refusals of an Oxia server, and their meaning on the port. Pure.

Oxia's own status codes are beyond those that gRPC defines and arrive as UNKNOWN, so they are recognised by their text.
"""

from __future__ import annotations

from enum import Enum

import grpc

from anabranch.metadata.grpc_calls import CallFailed, Fate
from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.store_security import TlsFailed
from anabranch.model.errors import Error, NotAllowed, NotFound


class Refusal(Enum):
    """The value is part of the server's text."""

    NOT_LEADER = "not leader for shard"
    NOT_READY = "server not initialized"
    SESSION_UNKNOWN = "session not found"
    NAMESPACE_UNKNOWN = "namespace not found"
    NO_NOTIFICATIONS = "notifications not enabled"


class NamespaceMissing(NotFound):
    """The URL names a namespace that the Oxia cluster does not have."""

    code = "oxia-namespace-missing"


class AnswerUnreadable(StoreUnavailable):
    """Bytes that are not an answer of an Oxia server, or an answer that does not match the request."""

    code = "metadata-answer-unreadable"
    retryable = False


def refusal(failed: CallFailed) -> Refusal | None:
    return next((known for known in Refusal if known.value in failed.details), None)


def was_not_executed(failed: CallFailed) -> bool:
    """True if no request of this call can have been executed. Only for calls without any answer."""
    if failed.code is grpc.StatusCode.UNIMPLEMENTED or failed.fate is Fate.NOT_SENT:
        return True
    return refusal(failed) is Refusal.NOT_LEADER  # the server checks it before the first request


def port_error(failed: CallFailed, doing: str) -> Error:
    match refusal(failed):
        case Refusal.NAMESPACE_UNKNOWN:
            return NamespaceMissing("the Oxia cluster has no such namespace")
        case Refusal.NO_NOTIFICATIONS:
            return StoreUnavailable("notifications are disabled in this Oxia namespace; the metadata store needs them")
        case _ if failed.code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return NotAllowed(f"Oxia does not accept the token of the metadata URL: {failed.details}")
        case _ if failed.is_tls_failure:
            return TlsFailed(f"{doing}: {failed.details}")
        case _:
            return StoreUnavailable(f"{doing}: {failed}")


def is_retryable(failed: CallFailed) -> bool:
    """For reads: may another attempt succeed?"""
    if refusal(failed) in (Refusal.NAMESPACE_UNKNOWN, Refusal.NO_NOTIFICATIONS, Refusal.SESSION_UNKNOWN):
        return False
    return failed.fate is not Fate.ANSWERED or failed.code is grpc.StatusCode.UNIMPLEMENTED
