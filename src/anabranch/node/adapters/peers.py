"""The other brokers of the cluster: implements `broker.peers.BrokerPeers` with signed calls over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from anabranch.broker.peers import BrokerFacts, PeerCallUnanswered, PeerNotConnected
from anabranch.cluster.cluster import DIRECTOR
from anabranch.cluster.slots import slots_of_bundle
from anabranch.interbroker.client import PeerClient
from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.recipes.election import read_leader
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import NotFound, NotReady
from anabranch.model.names import TopicName
from anabranch.node.adapters.placement import ClusterPlacement, address_of

MOVE_SECONDS = 40.0
LOOK_SECONDS = 1.0


class ClusterPeers:
    def __init__(
        self, place: ClusterPlacement, store: MetadataStore, client: PeerClient, me: str, drain_seconds: float
    ) -> None:
        self._place = place
        self._store = store
        self._client = client
        self._me = me
        self._drain_seconds = drain_seconds

    @property
    def me(self) -> str:
        return self._me

    def check_valid(self) -> None:
        if not self._place.cluster.is_valid:
            raise NotReady("this broker has lost its session, or the metadata store is unavailable for too long")

    def others(self) -> list[str]:
        return sorted(name for name in self._place.cluster.brokers if name != self._me)

    async def facts(self) -> list[BrokerFacts]:
        cluster = self._place.cluster
        leader = await read_leader(self._store, DIRECTOR)
        leads = None if leader is None else leader.value.decode()
        table = cluster.table
        return [
            BrokerFacts(
                id=name,
                address=address_of(info),
                version=info.version,
                started_ms=info.started_ms,
                slots=len(table.held_by(info.broker_incarnation)),
                load=info.load,
                is_draining=info.is_draining,
                is_leader=name == leads,
            )
            for name, info in sorted(cluster.brokers.items())
        ]

    def owner_of(self, topic: TopicName) -> str | None:
        info = self._place.cluster.owner_info(str(topic))
        return None if info is None else info.broker

    async def call(self, broker: str, name: str, arguments: Mapping[str, Any]) -> Any:
        info = self._place.cluster.brokers.get(broker)
        if info is None:
            raise PeerNotConnected(f"broker {broker} is not registered any more")
        asking = asyncio.create_task(
            self._client.call(info.http_url, info.broker_incarnation, name, arguments), name="peer call"
        )
        leaving = asyncio.create_task(self._wait_gone(info.broker_incarnation), name="peer call:gone")
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise PeerCallUnanswered(f"broker {broker} was replaced before it answered")
        finally:
            for task in (asking, leaving):
                task.cancel()
            await asyncio.gather(asking, leaving, return_exceptions=True)

    async def _wait_gone(self, incarnation: BrokerIncarnation) -> None:
        """Waits until the incarnation is not registered any more. A frozen broker keeps connections; a call must not
        wait longer than its session."""
        cluster = self._place.cluster
        while (info := cluster.brokers.get(incarnation.broker)) is not None and info.broker_incarnation == incarnation:
            await cluster.wait_changed(cluster.changes, LOOK_SECONDS)

    async def drain(self) -> bool:
        return await self._place.cluster.drain(self._drain_seconds)

    async def resume(self) -> None:
        await self._place.cluster.resume(self._drain_seconds)

    async def move(self, span: tuple[int, int], broker: str) -> None:
        if broker not in self._place.cluster.brokers:
            raise NotFound(f"Broker {broker} does not exist")
        slots = slots_of_bundle(f"0x{span[0]:08x}_0x{span[1]:08x}")
        if not await self._place.cluster.move(slots, broker, MOVE_SECONDS):
            raise NotReady(f"broker {broker} does not serve all of the bundle yet; the move goes on")
