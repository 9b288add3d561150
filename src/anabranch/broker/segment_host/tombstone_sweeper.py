"""Deletes tombstones of segments that are older than 24 hours, once an hour.

A tombstone rejects delayed requests of former leaders; these arrive within minutes.
"""

from __future__ import annotations

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.placement import ServedElsewhere
from anabranch.broker.segment.segment_logs import SegmentLogs
from anabranch.broker.segment_host.local_segments import LocalSegments
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner, YieldBudget

log = get_logger(__name__)

LOOK_SECONDS = 3_600.0
KEEP_MS = 24 * 3_600 * 1_000


class TombstoneSweeper:
    def __init__(self, catalog: Catalog, logs: SegmentLogs, owner: LocalSegments, clock: Clock) -> None:
        self._catalog = catalog
        self._logs = logs
        self._owner = owner
        self._clock = clock
        self._tasks = TaskOwner("segment tombstones")

    def start(self) -> None:
        self._tasks.spawn(self._run(), "sweep")

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                count = await self.sweep(self._clock.now_ms() - KEEP_MS)
            except Error as error:  # metadata store failing: the next round tries again
                log.warning("segment tombstones not swept, retrying in an hour", extra={"reason": error.reason})
            else:
                if count:
                    log.info("deleted expired segment tombstones", extra={"count": count})

    async def sweep(self, before_ms: int) -> int:
        """Deletes expired tombstones of local segments; returns their number."""
        budget, count = YieldBudget(self._clock), 0
        for tenant in await self._catalog.tenants():
            for namespace in await self._catalog.namespaces(tenant):
                for name in await self._logs.names(namespace):
                    await budget.spend()
                    try:
                        count += await self._owner.forget(name, before_ms)
                    except ServedElsewhere:
                        continue  # left to its owner
        return count
