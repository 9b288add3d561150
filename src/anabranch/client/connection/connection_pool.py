"""Connections of one client, one per broker, and requests that every broker answers: partition counts and lookups."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from anabranch.client.config import ConnectionPolicy
from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.errors import ClientError, Closed, HandshakeFailed, NotReady, TimedOut, Unreachable, refusal
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.clock import Clock
from anabranch.runtime.credentials import Credentials
from anabranch.runtime.tasks import TaskOwner

HOPS_MAX = 20


class ConnectionPool:
    def __init__(
        self,
        services: Sequence[Address],
        policy: ConnectionPolicy,
        clock: Clock,
        *,
        auth: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        answer_timeout_s: float = 30.0,
    ) -> None:
        self._services = list(services)  # the one that answered last comes first
        self._policy = policy
        self._clock = clock
        self._auth = auth
        self._tls = tls
        self.answer_timeout_s = answer_timeout_s
        self._connections: dict[Address, Connection] = {}
        self._dials: dict[Address, asyncio.Task[Connection | ClientError]] = {}
        self._tasks = TaskOwner("client-dials")
        self._is_closed = False

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def connection(self, address: Address | None = None) -> Connection:
        """The connection to a broker, opened if necessary; without `address`, to any broker that answers."""
        if address is not None:
            return await self._connection(self._known(address))
        failure: ClientError | None = None
        for service in list(self._services):
            try:
                return await self._connection(service)
            except (Unreachable, TimedOut, HandshakeFailed) as error:
                if failure is None or error.retryable:  # a broker that may come back is worth another attempt
                    failure = error
                if service in self._services:  # the others are tried first from now on
                    self._services.remove(service)
                    self._services.append(service)
        assert failure is not None
        raise failure

    async def _connection(self, address: Address) -> Connection:
        """Concurrent callers share one attempt to connect."""
        if self._is_closed:
            raise Closed("the client is closed")
        known = self._connections.get(address)
        if known is not None and known.is_usable:
            return known
        dial = self._dials.get(address)
        if dial is None:
            dial = self._tasks.spawn(self._dial(address), f"dial {address}")
            assert dial is not None
            self._dials[address] = dial
        # Shielded, because one cancelled caller must not cancel the attempt for the others.
        outcome = await asyncio.shield(dial)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    async def _dial(self, address: Address) -> Connection | ClientError:
        try:
            made = await Connection.dial(address, self._policy, self._clock, self._auth, self._tls)
            self._connections[address] = made
            return made
        except ClientError as error:
            return error
        finally:
            self._dials.pop(address, None)

    async def private(self, address: Address | None) -> Connection:
        """A connection for one user only, to this broker or to any. The caller must close it."""
        if self._is_closed:
            raise Closed("the client is closed")
        if address is None:
            address = (await self.connection()).address
        return await Connection.dial(self._known(address), self._policy, self._clock, self._auth, self._tls)

    def _known(self, address: Address) -> Address:
        """A broker on loopback has several addresses but needs only one connection."""
        return next((service for service in self._services if address.is_same_place(service)), address)

    def address_of(self, url: str, url_tls: str) -> str:
        """The address of a broker that this client uses, by TLS or not; empty if the broker did not send it."""
        return url_tls if self._services[0].is_tls else url

    async def partitions(self, topic: str) -> int:
        """Number of partitions; 0 for a topic that is not partitioned."""
        connection = await self.connection()
        answer = await connection.ask(BaseCommand.PARTITIONED_METADATA, self.answer_timeout_s, topic=topic)
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise refusal(answer.error, answer.message, answer.migrated_to)
        return int(answer.partitions)

    async def serving(self, topic: str) -> Connection:
        """A connection to the broker that serves this topic."""
        address: Address | None = None
        authoritative = False
        for _ in range(HOPS_MAX):
            connection = await self.connection(address)
            answer = await connection.ask(
                BaseCommand.LOOKUP, self.answer_timeout_s, topic=topic, authoritative=authoritative
            )
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise refusal(answer.error, answer.message)
            url = self.address_of(answer.brokerServiceUrl, answer.brokerServiceUrlTls)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                if answer.proxy_through_service_url or not url:
                    return connection
                return await self.connection(Address.parse(url))
            if not url:
                raise Unreachable(f"a broker redirected the lookup of {topic} without an address")
            address, authoritative = Address.parse(url), answer.authoritative
        raise NotReady(f"the lookup of {topic} was redirected more than {HOPS_MAX} times")

    async def close(self) -> None:
        """Returns when every socket is closed. Safe to repeat. If cancelled, sockets are closed at once."""
        self._is_closed = True
        try:
            await self._tasks.close()
        finally:
            connections = list(self._connections.values())
            self._connections.clear()
            try:
                await asyncio.gather(*(connection.close() for connection in connections))
            finally:
                for connection in connections:  # some may not have begun to close
                    connection.abort("closed")
