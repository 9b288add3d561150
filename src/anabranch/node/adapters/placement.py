"""Placement of topics from the cluster's slot table, and what the cluster asks of this broker's topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

from anabranch.broker.placement import Address, Listener, ServedElsewhere
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.cluster.broker_info import BrokerInfo
from anabranch.cluster.cluster import Cluster
from anabranch.cluster.slots import slot_of
from anabranch.model.errors import NotReady
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.reach import is_listening
from anabranch.storage.interface import Fenced

log = get_logger(__name__)

PLACED_SECONDS = 8.0  # a client waits so long for a topic that moves; clients time out after 30
PROBE_SECONDS = 0.2
FENCE_SECONDS = 0.25


def address_of(info: BrokerInfo) -> Address:
    listeners = tuple(Listener(*one) for one in info.listeners)
    return Address(info.service_url, info.http_url, info.service_url_tls, info.http_url_tls, listeners)


class FencedStorage(Protocol):
    async def flush(self) -> None:
        """Make sealed ledgers readable for the next holder of their topics."""

    def check_fence(self) -> None: ...


class ClusterPlacement:
    """`broker.placement.Placement`, and the cluster's `Serving`."""

    def __init__(
        self,
        ledgers: FencedStorage,
        on_stepped_down: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._topics: TopicRegistry | None = None
        self._ledgers = ledgers
        self._on_stepped_down = on_stepped_down
        self._clock = clock
        self._answered: dict[str, float] = {}  # service URL -> when the broker was last seen listening
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            raise NotReady("the broker is joining the cluster")
        return self._cluster

    def serve(self, topics: TopicRegistry) -> None:
        """Called before the broker joins: slots may be closed as soon as it does."""
        self._topics = topics

    def joined(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def is_here(self, topic: TopicName) -> bool:
        return self._cluster is not None and self._cluster.is_here(str(topic))

    def owner_address(self, topic: TopicName) -> Address | None:
        info = self.cluster.owner_info(str(topic))
        if info is None or (
            info.broker_incarnation == self.cluster.info.broker_incarnation and not self.is_here(topic)
        ):
            return None  # this broker by the table, but it may not serve the topic: the client would be sent in circles
        return address_of(info)

    def check_here(self, topic: TopicName) -> None:
        if not self.is_here(topic):
            raise ServedElsewhere(topic, self.owner_address(topic))

    def require_ownership_epoch(self, topic: TopicName) -> int:
        """Ownership epoch of this broker for the topic; later holders have higher ones. ServedElsewhere."""
        ownership_epoch = self.cluster.ownership_epoch(str(topic))
        if ownership_epoch is None:
            raise ServedElsewhere(topic, self.owner_address(topic))
        return ownership_epoch

    def owner_epoch(self, topic: TopicName) -> int:
        return -1 if self._cluster is None else self._cluster.owner_epoch(str(topic))

    def ownership_epoch(self, topic: TopicName) -> int | None:
        return None if self._cluster is None else self._cluster.ownership_epoch(str(topic))

    async def wait_placed(self, topic: TopicName) -> None:
        """Waits also while the owner's port refuses connections: a killed broker is listed until its session ends."""
        cluster, name = self.cluster, str(topic)
        until = self._clock.monotonic() + PLACED_SECONDS
        looked = cluster.changes
        while not cluster.is_placed(name) or not await self._answers(cluster.owner_info(name)):
            remaining = until - self._clock.monotonic()
            if remaining <= 0 or cluster.has_stepped_down:
                return
            await cluster.wait_changed(looked, min(remaining, PROBE_SECONDS))
            looked = cluster.changes

    async def _answers(self, info: BrokerInfo | None) -> bool:
        if info is None:
            return False
        if info.broker == self.cluster.info.broker:
            return True
        now = self._clock.monotonic()
        if now - self._answered.get(info.service_url, now - PROBE_SECONDS) < PROBE_SECONDS:
            return True
        where = urlsplit(info.service_url)
        answers = await is_listening(where.hostname or "", where.port or 0, PROBE_SECONDS)
        if answers:
            self._answered[info.service_url] = self._clock.monotonic()
        return answers

    def may_confirm(self) -> bool:
        """Whether this broker's session is valid; Fenced once it has been given up."""
        if self._cluster is None:
            return True  # nothing is served yet
        if self._cluster.has_stepped_down:
            raise Fenced("another broker serves the topics of this one")
        return self._cluster.is_valid

    async def close(self, next_holders: Mapping[int, BrokerInfo | None]) -> Callable[[], None]:
        def next_address(name: TopicName) -> Address | None:
            info = next_holders.get(slot_of(str(name)))
            return None if info is None else address_of(info)

        assert self._topics is not None, "slots are closed after the broker joined"
        notifications = await self._topics.hand_over(lambda name: slot_of(str(name)) in next_holders, next_address)
        await self._ledgers.flush()  # the next holder reads ledger files, not this broker's log

        def send() -> None:
            for notification in notifications:
                notification.send()

        return send

    async def watch_fence(self) -> None:
        """Runs for ever. Without it, a broker that writes nothing would keep its clients after it was fenced."""
        while True:
            await self._clock.sleep(FENCE_SECONDS)
            self._ledgers.check_fence()

    async def watch_session(self, seconds: float, disconnect: Callable[[], None]) -> None:
        """Runs for ever: disconnects all clients when the session has been invalid for so long, once each time.

        For storage without a fence that this broker could see. A broker that is cut off from the metadata store never
        learns that others serve its topics, and its clients would wait for receipts until their own timeouts.
        """
        valid_at, is_told = self._clock.monotonic(), False
        while True:
            await self._clock.sleep(FENCE_SECONDS)
            now = self._clock.monotonic()
            if self.cluster.is_valid:
                valid_at, is_told = now, False
            elif not is_told and now - valid_at >= seconds:
                is_told = True
                log.warning(
                    "no session with the metadata store: clients are disconnected, so that they find another broker",
                    extra={"seconds": round(now - valid_at, 1)},
                )
                disconnect()

    def loads(self) -> Mapping[int, float]:
        loads: dict[int, float] = {}
        topics = self._topics
        assert topics is not None, "load is measured after the broker joined"
        for topic in topics.sampler.active():
            if topics.loaded(topic.name) is topic:
                slot = slot_of(str(topic.name))
                loads[slot] = loads.get(slot, 0.0) + topics.sampler.throughput(topic.name)
        return loads

    def step_down(self, reason: str) -> None:
        self._on_stepped_down()
