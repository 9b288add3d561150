"""The listener of the binary protocol: accepts connections up to a limit and closes them at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from anabranch.broker.services import Services
from anabranch.broker.wire.connection import Connection
from anabranch.broker.wire.consumer_commands import ConsumerCommands
from anabranch.broker.wire.lookup_commands import LookupCommands
from anabranch.broker.wire.producer_commands import ProducerCommands
from anabranch.broker.wire.scalable_list_commands import ScalableListCommands
from anabranch.broker.wire.scalable_subscription_commands import ScalableSubscriptionCommands
from anabranch.broker.wire.scalable_topic_commands import ScalableCommands
from anabranch.broker.wire.schema_commands import SchemaCommands
from anabranch.broker.wire.topic_extent_commands import ExtentCommands
from anabranch.broker.wire.topic_list_commands import TopicListCommands
from anabranch.model.errors import LimitExceeded
from anabranch.protocol import replies
from anabranch.protocol.commands import NO_REQUEST
from anabranch.protocol.server_errors import ServerError
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.net import Listener, Network, Stream, StreamHandler

log = get_logger(__name__)

SCRATCH_BYTES = 512 * 1024  # shared by all connections: the event loop reads one socket at a time


class BrokerServer:
    def __init__(
        self,
        network: Network,
        services: Callable[[], Services],
        connections_max: int,
        connections_per_address_max: int = 0,
    ) -> None:
        """`services` is called per connection, because the advertised address is known only when the port is bound."""
        self._network = network
        self._services = services
        self._connections_max = connections_max
        self._per_address_max = connections_per_address_max
        self._connections: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._scratch = bytearray(SCRATCH_BYTES)
        self._listeners: list[Listener] = []

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def listen(self, host: str, port: int, network: Network | None = None) -> Listener:
        """Listen on the server's network, or on an additional one (TLS)."""
        listener = await (network or self._network).listen(host, port, self._accept)
        self._listeners.append(listener)
        return listener

    def _accept(self, stream: Stream) -> StreamHandler:
        services = self._services()
        connection = Connection(stream, services, self._scratch, self._closed)
        connection.serve(
            LookupCommands(connection, services),
            ProducerCommands(connection, services),
            ConsumerCommands(connection, services),
            SchemaCommands(connection, services),
            ScalableCommands(connection, services),
            ScalableSubscriptionCommands(connection, services),
            ExtentCommands(connection, services),
            TopicListCommands(connection, services),
            ScalableListCommands(connection, services),
        )
        error = self._too_many(host_of(stream.peer))
        if error is not None:
            log.warning("connection refused", extra={"peer": stream.peer, "reason": error.reason})
            connection.send(replies.error(NO_REQUEST, ServerError.NotAllowedError, error.reason))
            connection.close()
        self._connections.add(connection)
        self._per_address[host_of(stream.peer)] += 1
        return connection

    def _too_many(self, host: str) -> LimitExceeded | None:
        if len(self._connections) >= self._connections_max:
            return LimitExceeded(f"broker has {self._connections_max} connections already")
        if self._per_address_max and self._per_address[host] >= self._per_address_max:
            return LimitExceeded(f"{self._per_address_max} connections from one address are open already")
        return None

    def _closed(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            host = host_of(connection.address)
            self._per_address[host] -= 1
            if self._per_address[host] <= 0:
                del self._per_address[host]

    async def permissions_changed(self, tenant: str | None, namespace: str | None = None) -> None:
        """When this returns, what a revoked grant had allowed is closed on every connection."""
        for connection in list(self._connections):
            await connection.permissions_changed(tenant, namespace)

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def disconnect_all(self) -> None:
        """Clients connect again, and look up where their topics are."""
        for connection in list(self._connections):
            connection.abort()

    async def close_connections(self, clock: Clock, seconds: float) -> None:
        """Close after queued frames are sent; a client that does not read in time is disconnected."""
        for connection in list(self._connections):
            connection.close()
        deadline = clock.monotonic() + seconds
        while self._connections and clock.monotonic() < deadline:
            await clock.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()


def host_of(peer: str) -> str:
    """The address of a peer, without its port."""
    return peer.rpartition(":")[0]
