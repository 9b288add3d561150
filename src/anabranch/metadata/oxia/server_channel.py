"""One Oxia server: its channel, and under which name it offers the service. Knows no shards and no retries.

The service moved from `io.streamnative.oxia.proto` to `io.oxia.proto.v1`; new servers answer under both names, old ones
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
    """Done here and not by gRPC, which would turn what it cannot read into None."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise AnswerUnreadable(f"{len(data)} bytes are no {kind.__name__} of an Oxia server") from error


class ServerChannel:
    """Raises CallFailed. Deadlines are the caller's: it wraps calls in `asyncio.timeout`."""

    def __init__(self, address: str, connect_to: str) -> None:
        """`address` is how the servers name it."""
        self.address = address
        self._channel = make_channel(connect_to)
        self._service: str | None = None
        self._finding = asyncio.Lock()

    async def ask(self, method: str, request: Message, kind: type[M]) -> M:
        multi: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(await self._path(method))
        call = multi(request.SerializeToString())
        try:
            return parse(kind, await answer(call))
        except CallFailed as failed:
            self._doubt(failed)
            raise

    async def flow(self, method: str, request: Message, kind: type[M]) -> AsyncGenerator[M, None]:
        """The messages of a stream as they are taken; leaving the loop cancels the call (use `aclosing`)."""
        call = self._stream(await self._path(method), request)
        try:
            while isinstance(data := await answer(call.read()), bytes):  # else the end
                yield parse(kind, data)
        except CallFailed as failed:
            self._doubt(failed)
            raise
        finally:
            call.cancel()

    async def open_writes(self, metadata: Sequence[tuple[str, str]]) -> WriteCall:
        path = await self._path(WRITE)
        return self._channel.stream_stream(path)(metadata=grpc.aio.Metadata(*metadata))

    async def failure_of(self, call: WriteCall) -> CallFailed:
        """Why a stream that is over ended: what a failed write raises does not say it."""
        failed = CallFailed(await call.code(), await call.details() or "the server ended the stream")
        self._doubt(failed)
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
        """Any answer but "no such service" will do, a refusal too. Every server tells assignments."""
        for service in SERVICES:
            call = self._stream(f"/{service}/{ASSIGNMENTS}", wire.AssignmentsRequest())
            try:
                await answer(call.read())
            except CallFailed as failed:
                if failed.code is grpc.StatusCode.UNIMPLEMENTED:
                    continue
                if failed.code is not grpc.StatusCode.UNKNOWN:  # Oxia's own words come as UNKNOWN
                    raise
            finally:
                call.cancel()
            return service
        raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, f"{self.address} is no Oxia server")

    def _stream(self, path: str, request: Message) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
        multi: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(path)
        return multi(request.SerializeToString())

    def _doubt(self, failed: CallFailed) -> None:
        """Another release may run there now."""
        if failed.code is grpc.StatusCode.UNIMPLEMENTED:
            self._service = None
