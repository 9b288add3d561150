"""HTTP answer of an error: `{"reason": …, "error": …}` with Pulsar's status. Never a stack trace.

`error` is the stable code of the error. The field is not called `code`, because Go's admin client expects a number
there and shows the raw JSON instead of the reason.

The status follows from the error's code. An error class whose code is not listed answers like its nearest base class.
"""

from __future__ import annotations

from urllib.parse import urlencode

from anabranch.broker.peers import PeerCallRefused
from anabranch.broker.placement import Address
from anabranch.model.errors import Error
from anabranch.rest.http_message import Request, Response, json_response

STATUS = {
    "bad-request": 400,
    "authentication": 401,
    "authorization": 403,
    "unauthorized": 401,
    "forbidden": 403,
    "foreign-host": 403,
    "read-only": 403,
    "not-found": 404,
    "ledger-not-found": 404,
    "unknown-path": 404,
    "wrong-method": 405,
    "force-refused": 405,
    "not-of-this-kind": 405,
    "bad-partition-count": 406,
    "already-exists": 409,
    "segment-of-controller": 409,
    "not-empty": 409,
    "segment-not-active": 409,
    "operation-running": 409,
    "operation-aborted": 409,
    "subscription-of-other-type": 409,
    "subscription-busy": 409,
    "version-mismatch": 409,
    "too-many-subscriptions": 409,
    "nothing-to-do": 409,
    "running": 409,
    "metadata-migration-running": 409,
    "no-metadata-migration": 409,
    "target-not-empty": 409,
    "not-partitioned": 409,
    "topic-not-migrated": 409,
    "migration-undone": 409,
    "migration-blocked": 409,
    "topic-migrating": 409,
    "topic-migrated": 410,
    "bad-name": 412,
    "busy": 412,
    "not-allowed": 412,
    "limit-exceeded": 412,
    "bad-filter": 412,
    "bad-segment-count": 412,
    "bad-policy": 412,
    "too-many-segments": 412,
    "dag-too-deep": 412,
    "record-too-large": 412,
    "body-too-large": 413,
    "incompatible-schema": 409,
    "fewer-partitions": 422,
    "bad-split": 422,
    "bad-merge": 422,
    "bad-schema": 422,
    "too-many-requests": 429,
    "headers-too-large": 431,
    "error": 500,
    "not-ready": 503,
    "served-elsewhere": 503,
    "broker-unreachable": 503,
    "metadata-unavailable": 503,
    "metadata-read-only": 503,
    "fenced": 503,
    "overloaded": 503,
    "timeout": 504,
    "storage-full": 507,
}


class CannotListen(Error):
    """The HTTP port is in use, or may not be used."""

    code = "cannot-listen"


class BodyTooLarge(Error):
    code = "body-too-large"


class TooManyStreams(Error):
    """The port sends as many live answers as `http.streams_max` allows."""

    code = "overloaded"
    retryable = True


class TimedOut(Error):
    """The deadline of the request has passed. Its work may still complete."""

    code = "timeout"
    retryable = True


class BadPartitionCount(Error):
    code = "bad-partition-count"


class FewerPartitions(Error):
    """Partitions cannot be removed, because their messages would be lost."""

    code = "fewer-partitions"


class ForceRefused(Error):
    """Forced deletion of a tenant or namespace with its contents is not supported."""

    code = "force-refused"


class NotPartitioned(Error):
    code = "not-partitioned"


class NotEmpty(Error):
    code = "not-empty"


def status_of(error: Error) -> int:
    if isinstance(error, PeerCallRefused):
        return error.status
    if error.code in STATUS:
        return STATUS[error.code]
    codes = (vars(kind).get("code") for kind in type(error).__mro__)
    return next((STATUS[code] for code in codes if code in STATUS), 500)


def error_response(error: Error) -> Response:
    status = status_of(error)
    made = refusal(error.code, error.reason, status)
    extra: list[tuple[str, str]] = []
    if status == 405 and (allowed := getattr(error, "allowed", None)):
        extra.append(("Allow", ", ".join(allowed)))
    if status == 401:
        extra.append(("WWW-Authenticate", 'Bearer realm="anabranch"'))
    if status in (429, 503):
        extra.append(("Retry-After", "1"))
    return Response(status, made.body, made.content_type, tuple(extra))


def refusal(code: str, reason: str, status: int) -> Response:
    return json_response({"reason": reason, "error": code}, status)


def redirect(request: Request, address: Address) -> Response:
    """Redirects the request to the broker that serves the topic. A request over TLS stays on TLS."""
    base = address.http_url_tls if request.is_encrypted and address.http_url_tls is not None else address.http_url
    query = f"?{urlencode(request.query_pairs)}" if request.query_pairs else ""
    return Response(307, headers=(("Location", f"{base}{request.path}{query}"),))


def internal_error() -> Response:
    """Answer to an unexpected exception. The log has the details."""
    return refusal("internal", "internal error; the broker's log has the details", 500)
