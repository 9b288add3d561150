"""Calls to one of several etcd servers: deadlines, repetition, and the server's errors as errors of the port.

One connection is in use at a time. When it fails or does not answer, all calls move on to the next endpoint; calls that
are pending on the old one may finish. Reads are repeated until their deadline, writes only if they surely never reached
a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.grpc_calls import CallFailed, Fate, answer, close_channel, closed, make_channel
from anabranch.metadata.interface import (
    OutcomeUnknown,
    RequestTooLarge,
    SessionLost,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
)
from anabranch.metadata.store_security import NO_SECURITY, StoreSecurity, Tls, TlsFailed
from anabranch.model.errors import Error, NotAllowed
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

DEADLINE_MS = 8_000
ATTEMPTS = 3
"""A read waits 1/ATTEMPTS of its deadline for one server, then tries the next. An election takes a second or two."""

_BACKOFF_S = (0.02, 0.5)
_TOO_LARGE = (
    "etcdserver: request is too large",
    "etcdserver: too many operations in txn request",
    "grpc: received message larger than max",  # by the server; the client library writes it with a capital letter
)
_METADATA = (("hasleader", "true"),)
"""With this header a server without a leader refuses calls and ends streams at once."""

_TOKEN_REFUSED = ("invalid auth token", "user name is empty", "revision of auth store is old", "auth: invalid token")
_WRONG_CREDENTIALS = "invalid user ID or password"
_AUTH_IS_OFF = "authentication is not enabled"

Req = TypeVar("Req")
Res = TypeVar("Res")

log = get_logger(__name__)


class Compacted(StoreUnavailable):
    """The requested revision was compacted: start again at the present one."""

    code = "metadata-compacted"


class AnswerTooLarge(StoreUnavailable):
    """The answer exceeds the receive limit: request less."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Req, Res]):
    path: str
    encode: Callable[[Req], bytes]
    decode: Callable[[bytes], Res]


def _same(data: bytes) -> bytes:
    return data


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest.SerializeToString, pb.RangeResponse.FromString)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest.SerializeToString, pb.TxnResponse.FromString)
DELETE = Method(
    "/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest.SerializeToString, pb.DeleteRangeResponse.FromString
)
TXN_ENCODED = Method("/etcdserverpb.KV/Txn", _same, pb.TxnVerdict.FromString)
GRANT = Method(
    "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest.SerializeToString, pb.LeaseGrantResponse.FromString
)
REVOKE = Method(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest.SerializeToString, pb.LeaseRevokeResponse.FromString
)
KEEP_ALIVE: Method[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    pb.LeaseKeepAliveRequest.SerializeToString,
    pb.LeaseKeepAliveResponse.FromString,
)
AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest.SerializeToString, pb.AuthenticateResponse.FromString
)
WATCH: Method[pb.WatchRequest, pb.WatchResponse] = Method(
    "/etcdserverpb.Watch/Watch", pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString
)


class EndpointConnection:
    """A connection to one endpoint."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self._channel = make_channel(address, tls=tls)
        self._methods: dict[int, Any] = {}

    async def call(self, method: Method[Req, Res], request: Req, timeout_s: float, token: str = "") -> Res:
        made = self._methods.get(id(method))
        if made is None:
            made = self._channel.unary_unary(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )
            self._methods[id(method)] = made
        try:
            call = made(request, timeout=timeout_s, metadata=_headers(token))
        except grpc.aio.UsageError as error:
            raise closed(error) from error
        response: Res = await answer(call)
        return response

    def stream(self, method: Method[Req, Res], token: str = "") -> grpc.aio.StreamStreamCall[Req, Res]:
        try:
            return self._channel.stream_stream(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )(metadata=_headers(token))
        except grpc.aio.UsageError as error:
            raise closed(error) from error

    async def close(self, grace_s: float | None) -> None:
        await close_channel(self._channel, grace_s)


class UserToken:
    """The token of etcd's user. It is obtained when it is needed, and again when a server does not accept it.

    A server refuses a request with a bad token before executing it, so any request may be sent again with a new one.
    """

    def __init__(self, security: StoreSecurity) -> None:
        self._security = security
        self._token = ""
        self._lock = asyncio.Lock()

    async def get(self, connection: EndpointConnection, timeout_s: float) -> str:
        """Empty without a user. Raises CallFailed, and CredentialsUnreadable."""
        if not self._security.user or self._token:
            return self._token
        async with self._lock:
            if not self._token:
                request = pb.AuthenticateRequest(name=self._security.user, password=self._security.password())
                self._token = (await connection.call(AUTHENTICATE, request, timeout_s)).token
        return self._token

    def on_failure(self, failure: CallFailed, token: str) -> bool:
        """Forget `token` if the call failed because of it; True if a new one may help."""
        is_refused = bool(token) and any(text in failure.details for text in _TOKEN_REFUSED)
        if is_refused and self._token == token:
            self._token = ""
        return is_refused

    def forget(self) -> None:
        self._token = ""


class EtcdChannel:
    """Access to a cluster. `revision` is the highest one that any answer has shown."""

    def __init__(
        self,
        endpoints: Sequence[str],
        clock: Clock,
        deadline_ms: int = DEADLINE_MS,
        security: StoreSecurity = NO_SECURITY,
    ) -> None:
        assert endpoints
        self._security, self._tls = security, security.tls
        self._token = UserToken(security)
        self._deadline_s = deadline_ms / 1000
        self._endpoints = tuple(endpoints)
        self._clock = clock
        self._index = 0
        self._connection: EndpointConnection | None = None
        self._retired: set[EndpointConnection] = set()
        self._tasks = TaskOwner("etcd-channel")
        self._is_open = False
        self.revision = 0

    @property
    def is_open(self) -> bool:
        return self._is_open

    def open(self) -> None:
        """Raises CredentialsUnreadable."""
        self._security.check_files()
        self._tasks = TaskOwner("etcd-channel")
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        connection, self._connection = self._connection, None
        await self._tasks.close()
        for old in {connection, *self._retired} - {None}:
            assert old is not None
            await old.close(None)
        self._retired.clear()

    def end(self, deadline_s: float | None = None) -> float:
        """Deadline (monotonic) of an operation that begins now; all its calls share it."""
        return self._clock.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)

    def connection(self) -> EndpointConnection:
        """The connection in use now."""
        if not self._is_open:
            raise StoreUnavailable("the metadata store is not open")
        if self._connection is None:
            self._connection = EndpointConnection(self._endpoints[self._index], self._tls)
        return self._connection

    def leave(self, connection: EndpointConnection) -> None:
        """This connection failed: the next call uses another one, with a new token."""
        self._token.forget()
        if connection is not self._connection:
            return  # replaced already
        self._index = (self._index + 1) % len(self._endpoints)
        self._connection = None
        self._retired.add(connection)
        self._tasks.spawn(self._retire(connection), connection.address)

    async def _retire(self, connection: EndpointConnection) -> None:
        await connection.close(self._deadline_s)
        self._retired.discard(connection)

    async def stream(
        self, connection: EndpointConnection, method: Method[Req, Res]
    ) -> grpc.aio.StreamStreamCall[Req, Res]:
        """Raises CallFailed. A stream that fails is given up with `leave`."""
        return connection.stream(method, await self._token.get(connection, self._deadline_s / ATTEMPTS))

    async def _call(
        self, connection: EndpointConnection, method: Method[Req, Res], request: Req, timeout_s: float
    ) -> Res:
        """Raises CallFailed."""
        token = await self._token.get(connection, timeout_s)
        try:
            return await connection.call(method, request, timeout_s, token)
        except CallFailed as failure:
            if not self._token.on_failure(failure, token):
                raise
        return await connection.call(method, request, timeout_s, await self._token.get(connection, timeout_s))

    async def repeat(self, method: Method[Req, Res], request: Req, *, end: float | None = None) -> Res:
        """An idempotent call: repeated, on other servers too, until `end`."""
        if end is None:
            end = self.end()
        attempt_s = (end - self._clock.monotonic()) / ATTEMPTS
        pause_s, pause_s_max = _BACKOFF_S
        tls_failures = 0
        while True:
            connection = self.connection()
            left_s = end - self._clock.monotonic()
            try:
                timeout_s = max(0.001, min(attempt_s, left_s))
                return self._update_revision(await self._call(connection, method, request, timeout_s))
            except CallFailed as failure:
                if fate_of(failure) is Fate.ANSWERED:
                    raise port_error(failure) from failure
                self.leave(connection)
                tls_failures = self._count_tls(failure, tls_failures)
                if self._clock.monotonic() + pause_s >= end:
                    raise StoreUnavailable(f"etcd at {connection.address}: {failure}") from failure
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, pause_s_max)

    async def once(self, method: Method[Req, Res], request: Req, *, end: float | None = None) -> Res:
        """A write: repeated only while it surely reached no server; otherwise OutcomeUnknown."""
        if end is None:
            end = self.end()
        pause_s, pause_s_max = _BACKOFF_S
        tls_failures = 0
        while True:
            connection = self.connection()
            left_s = end - self._clock.monotonic()
            try:
                return self._update_revision(await self._call(connection, method, request, max(0.001, left_s)))
            except CallFailed as failure:
                fate = fate_of(failure)
                if fate is Fate.ANSWERED:
                    raise port_error(failure) from failure
                self.leave(connection)
                if fate is Fate.UNKNOWN:
                    raise OutcomeUnknown(f"etcd at {connection.address}: {failure}") from failure
                tls_failures = self._count_tls(failure, tls_failures)
                if self._clock.monotonic() + pause_s >= end:
                    raise StoreUnavailable(f"etcd at {connection.address}: {failure}") from failure
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, pause_s_max)

    def _count_tls(self, failure: CallFailed, before: int) -> int:
        """Raises TlsFailed when every server failed in turn: repeating does not help, and the reason must be seen."""
        count = before + 1 if failure.is_tls_failure else 0
        if count >= len(self._endpoints):
            raise TlsFailed(f"etcd at {', '.join(self._endpoints)}: {failure.details}") from failure
        return count

    def _update_revision(self, response: Res) -> Res:
        header = getattr(response, "header", None)
        if header is not None and header.revision > self.revision:
            self.revision = header.revision
        return response


def _headers(token: str) -> tuple[tuple[str, str], ...]:
    return (*_METADATA, ("token", token)) if token else _METADATA


def fate_of(failure: CallFailed) -> Fate:
    """As for any gRPC call; in addition, a server without a leader does not execute the request."""
    if failure.code is grpc.StatusCode.UNAVAILABLE and failure.details == "etcdserver: no leader":
        return Fate.NOT_SENT
    return failure.fate


def port_error(failure: CallFailed) -> Error:
    """The server's refusal as an error of the port. The request was not executed."""
    code, details = failure.code, failure.details
    if "requested lease not found" in details:
        return SessionLost("the session's lease has ended")
    if "revision has been compacted" in details:
        return Compacted(details)
    if "database space exceeded" in details:
        return StoreFull(f"etcd has reached its quota: {details}")
    if details.startswith(_TOO_LARGE):
        return RequestTooLarge(details)
    if _WRONG_CREDENTIALS in details:
        return NotAllowed("etcd does not accept this user and password")
    if _AUTH_IS_OFF in details:
        return NotAllowed("etcd has no authentication: leave user and password-file out of the metadata URL")
    if "user name is empty" in details:
        return NotAllowed("etcd wants a user: add user=NAME&password-file=FILE to the metadata URL")
    match code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return AnswerTooLarge(details)
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return NotAllowed(f"etcd: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return StoreIncompatible(f"not an etcd server of version 3.4 or newer: {details}")
        case _:
            return StoreUnavailable(f"etcd: {failure}")
