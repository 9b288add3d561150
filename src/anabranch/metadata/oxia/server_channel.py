"""One Oxia server: its channel, and the name under which it offers the service.

The service moved from `io.streamnative.oxia.proto` to `io.oxia.proto.v1`. New servers answer under both names, old ones
only under the old. The new one is tried first, once per server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from anabranch.metadata.grpc_calls import CallFailed, answer, close_channel, make_channel
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable
from anabranch.metadata.store_security import NO_SECURITY, StoreSecurity

SERVICES = ("io.oxia.proto.v1.OxiaClient", "io.streamnative.oxia.proto.OxiaClient")

ASSIGNMENTS = "GetShardAssignments"
WRITE = "WriteStream"
READ = "Read"
LIST = "List"
SCAN = "RangeScan"
NOTIFICATIONS = "GetNotifications"
CREATE_SESSION = "CreateSession"
KEEP_ALIVE = "KeepAlive"
CLOSE_SESSION = "CloseSession"

M = TypeVar("M", bound=Message)
WriteCall = grpc.aio.StreamStreamCall[Any, Any]


def parse(kind: type[M], data: bytes) -> M:
    """Not done by gRPC, which would return None for unreadable bytes."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise AnswerUnreadable(f"{len(data)} bytes are not a {kind.__name__} of an Oxia server") from error


class ServerChannel:
    """Raises CallFailed. Callers set deadlines with `asyncio.timeout`."""

    def __init__(self, address: str, connect_to: str, security: StoreSecurity = NO_SECURITY) -> None:
        """`address` is the one in the assignments, `connect_to` the one to connect to."""
        self.address = address
        self._security = security
        self._headers: tuple[tuple[str, str], ...] | None = None  # None: the token is read at the next call
        self._channel = make_channel(connect_to, tls=security.tls)
        self._service: str | None = None
        self._finding = asyncio.Lock()

    async def ask(self, method: str, request: Message, kind: type[M]) -> M:
        multi: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(await self._path(method))
        call = multi(request.SerializeToString(), metadata=self._call_metadata())
        try:
            return parse(kind, await answer(call))
        except CallFailed as failed:
            self._on_failure(failed)
            raise

    async def stream(self, method: str, request: Message, kind: type[M]) -> AsyncGenerator[M, None]:
        """The messages of a stream. Leaving the loop cancels the call (use `aclosing`)."""
        call = self._stream(await self._path(method), request)
        try:
            while isinstance(data := await answer(call.read()), bytes):  # else the end
                yield parse(kind, data)
        except CallFailed as failed:
            self._on_failure(failed)
            raise
        finally:
            call.cancel()

    async def open_writes(self, metadata: Sequence[tuple[str, str]]) -> WriteCall:
        path = await self._path(WRITE)
        return self._channel.stream_stream(path)(metadata=self._call_metadata(*metadata))

    async def failure_of(self, call: WriteCall) -> CallFailed:
        """Why a stream ended; the error of a failed write does not contain it."""
        failed = CallFailed(await call.code(), await call.details() or "the server ended the stream")
        self._on_failure(failed)
        return failed

    async def close(self) -> None:
        await close_channel(self._channel)

    async def _path(self, method: str) -> str:
        if self._service is None:
            async with self._finding:
                if self._service is None:
                    self._service = await self._find_service()
        return f"/{self._service}/{method}"

    async def _find_service(self) -> str:
        """Any answer but UNIMPLEMENTED proves the service, even a refusal. Every server has assignments."""
        for service in SERVICES:
            call = self._stream(f"/{service}/{ASSIGNMENTS}", wire.AssignmentsRequest())
            try:
                await answer(call.read())
            except CallFailed as failed:
                if failed.code is grpc.StatusCode.UNIMPLEMENTED:
                    continue
                if failed.code is not grpc.StatusCode.UNKNOWN:  # Oxia's own status codes arrive as UNKNOWN
                    self._on_failure(failed)
                    raise
            finally:
                call.cancel()
            return service
        raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, f"{self.address} is not an Oxia server")

    def _stream(self, path: str, request: Message) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
        multi: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(path)
        return multi(request.SerializeToString(), metadata=self._call_metadata())

    def _call_metadata(self, *metadata: tuple[str, str]) -> grpc.aio.Metadata:
        if self._headers is None:
            security = self._security
            self._headers = (("authorization", f"Bearer {security.token()}"),) if security.token_file else ()
        return grpc.aio.Metadata(*metadata, *self._headers)

    def _on_failure(self, failed: CallFailed) -> None:
        """After UNIMPLEMENTED, find the service again: the server may run another release now. After UNAUTHENTICATED,
        read the token again: its file may have a newer one."""
        if failed.code is grpc.StatusCode.UNIMPLEMENTED:
            self._service = None
        if failed.code is grpc.StatusCode.UNAUTHENTICATED:
            self._headers = None
