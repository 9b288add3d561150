"""The broker's binary port: accepts connections up to a limit, gives each its command sets, closes them at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable

from anabranch.broker.connection import Connection
from anabranch.broker.consumer_commands import ConsumerCommands
from anabranch.broker.lookup_commands import LookupCommands
from anabranch.broker.producer_commands import ProducerCommands
from anabranch.broker.services import Services
from anabranch.model.errors import LimitExceeded
from anabranch.protocol import replies
from anabranch.protocol.commands import NO_REQUEST
from anabranch.protocol.server_errors import ServerError
from anabranch.runtime.clock import Clock
from anabranch.runtime.net import Listener, Network, Stream, StreamHandler

log = logging.getLogger(__name__)

SCRATCH_BYTES = 512 * 1024  # shared by all connections: one loop step reads one socket at a time


class BrokerServer:
    def __init__(self, network: Network, services: Callable[[], Services], connections_max: int) -> None:
        """`services` is asked per connection, because the advertised address is known only once the port is bound."""
        self._network = network
        self._services = services
        self._connections_max = connections_max
        self._connections: set[Connection] = set()
        self._scratch = bytearray(SCRATCH_BYTES)
        self._listeners: list[Listener] = []

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def listen(self, host: str, port: int) -> Listener:
        listener = await self._network.listen(host, port, self._accept)
        self._listeners.append(listener)
        return listener

    def _accept(self, stream: Stream) -> StreamHandler:
        services = self._services()
        connection = Connection(stream, services, self._scratch, self._connections.discard)
        connection.serve(
            LookupCommands(connection, services),
            ProducerCommands(connection, services),
            ConsumerCommands(connection, services),
        )
        if len(self._connections) >= self._connections_max:
            error = LimitExceeded(f"broker has {self._connections_max} connections already")
            log.warning("connection refused", extra={"peer": stream.peer, "reason": error.reason})
            connection.send(replies.error(NO_REQUEST, ServerError.NotAllowedError, error.reason))
            connection.close()
        self._connections.add(connection)
        return connection

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def close_connections(self, clock: Clock, seconds: float) -> None:
        """What is queued is sent first; a peer that does not read in time is cut off."""
        for connection in list(self._connections):
            connection.close()
        deadline = clock.monotonic() + seconds
        while self._connections and clock.monotonic() < deadline:
            await clock.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()
