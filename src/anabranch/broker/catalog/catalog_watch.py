"""Applies changes of namespaces, tenants and topic policies that other brokers made. It follows the store's change
hints; no polling.

A hint names a key; `TopicRegistry.apply_policies`, `TopicRegistry.apply_topic_policies` and
`BrokerServer.permissions_changed` read its current value. After a gap in the hints everything that is loaded and every
connection is checked. Permissions come first, because policies may take long to apply. Schemas, partition counts and
grants are read from the store on use, so they are never stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

from anabranch.broker.catalog.topic_policy_records import TOPIC_POLICIES, namespace_at, topic_policies_key
from anabranch.broker.errors import NamespaceNotFound
from anabranch.metadata.interface import Change, ChangeKind, MetadataStore, StoreUnavailable, Watch
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

NAMESPACES, TENANTS = "/namespaces", "/tenants"
APPLY_SECONDS = 60.0


class LoadedTopics(Protocol):
    def names(self) -> list[TopicName]: ...

    async def apply_policies(self, namespace: str) -> None: ...

    async def apply_topic_policies(self, name: TopicName) -> None: ...


class OpenConnections(Protocol):
    async def permissions_changed(self, tenant: str | None, namespace: str | None = None) -> None: ...


@dataclass(slots=True)
class Unread:
    """Set of namespaces, tenants and topics to check again. Hints add to it, `take` empties it."""

    namespaces: dict[str, None] = field(default_factory=dict)
    tenants: dict[str, None] = field(default_factory=dict)
    topics: dict[str, None] = field(default_factory=dict)  # by the key of their policies
    is_everything: bool = False

    def __bool__(self) -> bool:
        return self.is_everything or bool(self.namespaces or self.tenants or self.topics)

    def note(self, change: Change) -> None:
        if change.kind is ChangeKind.INVALIDATED:
            self.is_everything = True
        elif change.key.startswith(f"{NAMESPACES}/") and change.key.count("/") == 3:
            self.namespaces[change.key.removeprefix(f"{NAMESPACES}/")] = None
        elif change.key.startswith(f"{TENANTS}/"):
            self.tenants[change.key.removeprefix(f"{TENANTS}/")] = None
        elif change.key.startswith(f"{TOPIC_POLICIES}/"):
            self.topics[change.key] = None

    def take(self) -> Unread:
        """What was noted; nothing is noted afterwards."""
        taken = replace(self, namespaces=dict(self.namespaces), tenants=dict(self.tenants), topics=dict(self.topics))
        self.namespaces.clear()
        self.tenants.clear()
        self.topics.clear()
        self.is_everything = False
        return taken

    def add(self, other: Unread) -> None:
        self.namespaces.update(other.namespaces)
        self.tenants.update(other.tenants)
        self.topics.update(other.topics)
        self.is_everything = self.is_everything or other.is_everything

    def loaded_namespaces(self, loaded: Iterable[TopicName]) -> list[str]:
        """Those with loaded topics: their policies have to be applied."""
        found = {name.namespace_path for name in loaded}
        return sorted(found if self.is_everything else found & self.namespaces.keys())

    def loaded_topics(self, loaded: Iterable[TopicName]) -> list[TopicName]:
        """Loaded topics with changed policies of their own. Those of the namespaces above are checked with them."""
        if self.is_everything:
            return []
        among = {namespace_at(key) for key in self.topics} - self.namespaces.keys()
        by_key = {topic_policies_key(name): name for name in loaded if among and name.namespace_path in among}
        return [name for key, name in by_key.items() if key in self.topics]


class CatalogWatch:
    """`async with CatalogWatch(…)`: watching inside."""

    def __init__(
        self,
        store: MetadataStore,
        topics: LoadedTopics,
        connections: OpenConnections,
        clock: Clock,
        patience: RetryDelays = RETRY_DELAYS,
    ) -> None:
        self._store = store
        self._topics = topics
        self._connections = connections
        self._clock = clock
        self._patience = patience
        self._unread = Unread()
        self._noted = asyncio.Event()
        self._watches: list[Watch] = []
        self._tasks = TaskOwner("catalog-watch")

    async def __aenter__(self) -> Self:
        for prefix in (NAMESPACES, TENANTS, TOPIC_POLICIES):
            watch = self._store.watch(prefix)
            self._watches.append(watch)
            self._tasks.spawn(self._follow(watch), prefix)
        self._tasks.spawn(self._work(), "apply")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.close()
        await self._tasks.close()

    async def _follow(self, watch: Watch) -> None:
        async for change in watch:
            self._unread.note(change)
            self._noted.set()

    async def _work(self) -> None:
        failures = 0
        while True:
            await self._noted.wait()
            self._noted.clear()
            changed = self._unread.take()
            try:
                async with asyncio.timeout(APPLY_SECONDS):
                    await self._apply(changed)
                failures = 0
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("changed policies not applied; will be retried", extra={"reason": str(error)})
                self._unread.add(changed)
                self._noted.set()
                failures += 1
                await self._clock.sleep(self._patience.retry_after(failures, 0.5))

    async def _apply(self, changed: Unread) -> None:
        if changed.is_everything:
            await self._connections.permissions_changed(None)
        else:
            for namespace in sorted(changed.namespaces):
                await self._connections.permissions_changed(namespace.partition("/")[0], namespace)
            for tenant in sorted(changed.tenants):
                await self._connections.permissions_changed(tenant)
        loaded = list(self._topics.names())
        for namespace in changed.loaded_namespaces(loaded):
            try:
                await self._topics.apply_policies(namespace)
            except NamespaceNotFound:
                continue  # deleted; its topics are being closed
        for topic in changed.loaded_topics(loaded):
            try:
                await self._topics.apply_topic_policies(topic)
            except NamespaceNotFound:
                continue
