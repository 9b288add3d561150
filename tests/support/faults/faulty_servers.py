"""A cluster of real servers behind fault proxies, and the faults that can be injected.

Stores made by `make_store` reach the servers through the proxies; the one made by `make_witness` reaches them directly.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from anabranch.metadata.interface import MetadataStore
from anabranch.runtime.clock import SystemClock
from tests.services import Cluster, Node
from tests.support.faults.fault_proxy import FaultProxy, Lane
from tests.support.processes.broker_process import HOST

DEADLINE_S = 1.5
BEYOND_S = 2.2
"""Longer than the deadline."""

_places = itertools.count(1)


def make_store(
    scheme: str,
    addresses: Sequence[str],
    place: str,
    deadline_s: float = DEADLINE_S,
    connect_address: Callable[[str], str] = lambda address: address,
) -> MetadataStore:
    """Like `open_store`, with a short deadline. `connect_address` maps advertised addresses to the proxies."""
    match scheme:
        case "oxia":
            from anabranch.metadata.oxia.records import Address
            from anabranch.metadata.oxia.store import OxiaStore

            address = Address.parse(f"//{','.join(addresses)}/default{place}")
            return OxiaStore(
                address, SystemClock(), deadline_ms=round(deadline_s * 1000), connect_address=connect_address
            )
        case "etcd":
            from anabranch.metadata.etcd.store import EtcdStore

            return EtcdStore(addresses, place, SystemClock(), deadline_ms=round(deadline_s * 1000))
        case "zk":
            from anabranch.metadata.zookeeper.address import parse_url
            from anabranch.metadata.zookeeper.store import ZooKeeperStore

            servers, chroot = parse_url(f"//{','.join(addresses)}{place}")
            return ZooKeeperStore(servers, chroot, SystemClock(), request_s=deadline_s)
    raise AssertionError(scheme)


class FaultWorld:
    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.proxies = [FaultProxy(node.port) for node in cluster.nodes]
        self._place = f"/faults-{next(_places)}"

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    def make_store(self) -> MetadataStore:
        addresses = [f"{HOST}:{proxy.port}" for proxy in self.proxies]
        self.chance.shuffle(addresses)
        by_server = {node.address: f"{HOST}:{proxy.port}" for node, proxy in zip(self.nodes, self.proxies, strict=True)}
        return make_store(
            self.cluster.scheme, addresses, self._place, connect_address=lambda address: by_server.get(address, address)
        )

    def make_witness(self) -> MetadataStore:
        return make_store(self.cluster.scheme, [node.address for node in self.nodes], self._place)

    async def __aenter__(self) -> Self:
        for proxy in self.proxies:
            await proxy.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until every server serves again, whatever the scenario did to it."""
        for proxy in self.proxies:
            await proxy.__aexit__(kind, error, trace)
        await asyncio.to_thread(self._restore)

    def _restore(self) -> None:
        for node in self.nodes:
            if node.is_alive:
                node.resume()
            else:
                node.launch()
        for node in self.nodes:
            node.wait_ready()

    # -- the network

    def cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def refuse(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()

    def black_hole(self) -> None:
        for proxy in self.proxies:
            proxy.black_hole()

    async def heal(self) -> None:
        for proxy in self.proxies:
            await proxy.heal()

    @property
    def ups(self) -> list[Lane]:
        return [proxy.up for proxy in self.proxies]

    @property
    def downs(self) -> list[Lane]:
        return [proxy.down for proxy in self.proxies]

    # -- the servers

    async def leader(self) -> Node:
        if len(self.nodes) == 1:
            return self.nodes[0]
        return await asyncio.to_thread(self.cluster.leader)

    async def start(self, node: Node) -> None:
        await asyncio.to_thread(node.start)

    async def stop(self, node: Node) -> None:
        await asyncio.to_thread(node.stop)
