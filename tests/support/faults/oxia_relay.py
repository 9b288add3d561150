"""A gRPC relay in front of a real Oxia server: offers the service under given names, and can corrupt answers.

It forwards raw bytes by method name. It calls the server under the relay's own address, because a standalone server
advertises the address under which it was called, so clients stay on the relay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from anabranch.metadata.grpc_calls import close_channel, make_channel
from anabranch.metadata.oxia.server_channel import SERVICES

HOST = "127.0.0.1"
NEW, OLD = SERVICES
Spoil = Callable[[bytes], bytes]


class OxiaRelay:
    """`async with OxiaRelay(server.address, [NEW]) as relay: connect to relay.address`."""

    def __init__(self, target: str, services: Sequence[str]) -> None:
        self.spoil: dict[str, Spoil] = {}  # method: what becomes of its answers
        self.called: set[str] = set()
        self._target = target
        self._services = services
        self._server = grpc.aio.server()
        self.address = ""

    async def __aenter__(self) -> Self:
        handler = _Handler(self)
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_insecure_port(f"{HOST}:0")
        self.address = f"{HOST}:{port}"
        self._channel = make_channel(self._target, ("grpc.default_authority", self.address))
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)
        await close_channel(self._channel)

    def offers(self, path: str) -> bool:
        self.called.add(path)
        return path.split("/")[1] in self._services

    async def carry(self, path: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Every method is forwarded as a bidirectional stream of bytes, whatever its type."""
        method = path.rpartition("/")[2]
        metadata = [(key, value) for key, value in context.invocation_metadata() if key in ("namespace", "shard-id")]
        multi: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{OLD}/{method}")
        call = multi(requests, metadata=grpc.aio.Metadata(*metadata))
        try:
            async for answer in call:
                yield self.spoil.get(method, bytes)(answer)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())
        finally:
            call.cancel()


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, relay: OxiaRelay) -> None:
        self._relay = relay

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path = handler_call_details.method
        if not self._relay.offers(path):
            return None  # gRPC answers UNIMPLEMENTED

        async def carry(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for answer in self._relay.carry(path, requests, context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(carry)
