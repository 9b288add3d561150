"""Loads unloaded topics from time to time, so that time-based policies (TTL, retention, inactivity) reach them.

The sweep of loaded topics then applies the policies and unloads them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.catalog.policies import Policies, for_segments
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.placement import ServedElsewhere
from anabranch.broker.segment.segment_logs import SegmentLogs
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


SCAN_SECONDS = 60.0
LOADS_MAX = 100  # per round
REVISIT_SECONDS = 600.0
VISITS_MAX = 100_000


def needs_scan(policies: Policies) -> bool:
    """Whether one of them is time-based."""
    return bool(
        policies.ttl_seconds
        or policies.retention is not None
        or policies.age_quota is not None
        or policies.inactive is not None
        or policies.subscription_expires_minutes
    )


class ScanHistory:
    """When each unloaded topic was last loaded by the scan; bounded."""

    def __init__(self) -> None:
        self._at: dict[TopicName, float] = {}

    def choose(self, unloaded: Iterable[TopicName], now: float) -> list[TopicName]:
        chosen: list[TopicName] = []
        for name in unloaded:
            if len(chosen) >= LOADS_MAX:
                break
            if now - self._at.get(name, -REVISIT_SECONDS) >= REVISIT_SECONDS:
                self._at.pop(name, None)
                self._at[name] = now
                chosen.append(name)
        while len(self._at) > VISITS_MAX:
            del self._at[next(iter(self._at))]
        return chosen


class UnloadedTopicScan:
    def __init__(
        self,
        catalog: Catalog,
        segments: SegmentLogs | None,
        clock: Clock,
        *,
        is_unloaded: Callable[[TopicName], bool],
        load: Callable[[TopicName], Awaitable[object]],
    ) -> None:
        """`is_unloaded`: served by this broker and not loaded. `load` raises TopicNotFound or ServedElsewhere."""
        self._catalog = catalog
        self._segments = segments
        self._clock = clock
        self._is_unloaded = is_unloaded
        self._load = load
        self._history = ScanHistory()

    async def run(self) -> None:
        """Scan periodically; never returns."""
        while True:
            await self._clock.sleep(SCAN_SECONDS)
            try:
                await self.round()
            except Error as error:  # metadata or disk failure: the next round retries
                log.warning("scan of unloaded topics failed, will be retried", extra={"reason": error.reason})

    async def round(self) -> None:
        unloaded = await self._unloaded()
        for name in self._history.choose(unloaded, self._clock.monotonic()):
            try:
                await self._load(name)
            except (TopicNotFound, ServedElsewhere):
                continue  # deleted or moved meanwhile

    async def _unloaded(self) -> list[TopicName]:
        found: list[TopicName] = []
        for tenant in await self._catalog.tenants():
            for namespace in await self._catalog.namespaces(tenant):
                found += [name for name in await self._timed(namespace) if self._is_unloaded(name)]
        return found

    async def _timed(self, namespace: str) -> list[TopicName]:
        """Topics and segments of the namespace with a time-based policy of their own or of the namespace."""
        common = await self._catalog.effective(namespace)
        if not needs_scan(common) and not await self._catalog.topic_policies.of_namespace(namespace):
            return []
        topics = await self._catalog.topics(namespace)
        segments = [] if self._segments is None else await self._segments.names(namespace)
        policies = await self._catalog.effective_of_all(namespace, [*topics, *segments])
        return [
            *(name for name in topics if needs_scan(policies(name))),
            *(name for name in segments if needs_scan(for_segments(policies(name)))),
        ]
