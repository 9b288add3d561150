"""The streaming reader: offsets, admission, AvailableNow, lag. Lives in one driver process per source and query.

Spark asks for the latest offset again at once while a query is idle, so answers come from what a watcher on the event
loop sees (`metadataMaxAgeMs`); only a batch that has something to read asks the brokers for more.

"Nothing new" is final for some callers: `processAllAvailable` returns on it. So that answer waits for a view that the
watcher asked for after Spark's question; during an outage it waits for the brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from anabranch.client.errors import ClientError
from anabranch.model.errors import Error
from anabranch.model.position import EARLIEST, Position
from anabranch.protocol.commands import message_id
from anabranch.runtime.logs import get_logger
from anabranch.spark.client.cluster_client import ClusterClient, cluster_of
from anabranch.spark.client.extents import ClusterCannot
from anabranch.spark.offsets import advance as cuts
from anabranch.spark.offsets import offset as offsets
from anabranch.spark.offsets import partitions as plan
from anabranch.spark.offsets.advance import LostData
from anabranch.spark.offsets.offset import Cut, Offset
from anabranch.spark.offsets.topic_view import View
from anabranch.spark.source.admission import admitted
from anabranch.spark.source.planning import at_time, loss_taken, offset_at, topics_of
from anabranch.spark.source.read_task import Task, read
from anabranch.spark.source.subscription_hold import Hold, unread_from

log = get_logger(__name__)

NAMES_EVERY_S = 5.0  # how often topics that match a pattern are looked for
NEWER_WITHIN_S = 1.0  # with a longer `metadataMaxAgeMs`, "nothing new" may be as old as that, less this wait


class Watcher:
    """What the brokers said last of some topics, asked for again and again on the event loop."""

    def __init__(
        self, cluster: ClusterClient, topics: Sequence[str], every_ms: int, pattern: str | None = None
    ) -> None:
        """With a pattern, topics that begin to match it are watched from then on."""
        self._cluster = cluster
        self._topics = list(topics)
        self._pattern = pattern
        self._named_at = cluster.clock.monotonic()
        self._every_s = every_ms / 1000
        self._views: dict[str, View] | None = None
        self._seen_at = 0.0
        self._asked_at = 0.0  # when the watcher asked for the views that it saw last
        self._news = asyncio.Event()
        self._failure: Error | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        async def begin() -> None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="spark watcher")

        self._cluster.call(begin)

    async def _run(self) -> None:
        while True:
            asked_at = self._cluster.clock.monotonic()
            try:
                await self._look_for_topics()
                found = await asyncio.gather(*(self._cluster.view_now(topic) for topic in self._topics))
                self._views, self._failure = dict(zip(self._topics, found, strict=True)), None
                self._seen_at, self._asked_at = self._cluster.clock.monotonic(), asked_at
            except Error as error:
                self._failure = error
                if isinstance(error, ClientError) and not error.retryable:
                    self._views = None  # a view known to be wrong must not be used for planning
            news, self._news = self._news, asyncio.Event()
            news.set()
            await self._cluster.clock.sleep(self._every_s)

    async def _look_for_topics(self) -> None:
        now = self._cluster.clock.monotonic()
        if self._pattern is None or now - self._named_at < NAMES_EVERY_S:
            return
        self._named_at = now
        self._topics += [one for one in await self._cluster.topics_now(self._pattern) if one not in self._topics]

    def views(self) -> dict[str, View]:
        """Not older than the operation timeout; raises why there are none."""
        age_s = self._cluster.clock.monotonic() - self._seen_at
        if self._views is None or age_s > self._cluster.timeout_s:
            failure = self._failure
            if isinstance(failure, ClientError) and not failure.retryable:
                raise failure
            return self._refreshed()
        return self._views

    def views_since(self, asked_at: float) -> dict[str, View]:
        """Asked for at this moment or later; raises why there are none."""
        since = asked_at - max(self._every_s - NEWER_WITHIN_S, 0.0)

        async def wait_newer() -> bool:
            try:
                async with asyncio.timeout(self._cluster.timeout_s):
                    while self._views is not None and self._asked_at < since:
                        await self._news.wait()
            except TimeoutError:
                return False
            return True

        return self.views() if self._cluster.call(wait_newer) else self._refreshed()

    def _refreshed(self) -> dict[str, View]:
        """Waits as long as the operation timeout says."""
        fresh = self._cluster.views(self._topics)
        self._views, self._seen_at = fresh, self._cluster.clock.monotonic()
        return fresh

    def stop(self) -> None:
        task = self._task
        if task is not None:

            async def end() -> None:
                task.cancel()

            self._cluster.call(end)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made in the driver's process of the source, and once more (unused but for `read`) to be sent to executors."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._watcher: Watcher | None = None
        self._frozen: dict[str, View] | None = None  # AvailableNow: what there was when the query started
        self._end: Offset | None = None  # of a bounded stream, once it is known
        self._bounded: tuple[Mapping[str, View], Mapping[str, View]] | None = None  # views, and what of them is read
        self._reached: Offset = {}  # where the query is once the batch that was offered last is done
        self._waiting_since: float | None = None
        self._hold: Hold | None = None
        self._had: dict[str, Position] = {}  # what the subscription kept when this process began, by backing topic

    def __getstate__(self) -> dict[str, Any]:
        return {"_task": self._task}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_task"])  # type: ignore[misc]  # unpickled for every task: only `read` is called there

    @property
    def _cluster(self) -> ClusterClient:
        return cluster_of(self._task.options.access)

    def _views(self) -> Mapping[str, View]:
        """What of the topics is to be read."""
        return self._limited(self._seen())

    def _seen(self) -> Mapping[str, View]:
        if self._frozen is not None:
            return self._frozen
        if self._watcher is None:
            options = self._task.options
            self._cluster.capabilities().check(options.counting())
            self._watcher = Watcher(
                self._cluster, topics_of(self._cluster, options), options.metadata_age_ms, options.topics_pattern
            )
            self._watcher.start()
        return self._watcher.views()

    def _limited(self, views: Mapping[str, View]) -> Mapping[str, View]:
        """Of a bounded stream only what lies before its end. A time may lie ahead of us, so it is looked up anew; an
        offset is what it was when the query started."""
        end = self._task.options.end
        if end is None:
            return views
        if self._bounded is None or self._bounded[0] is not views:
            if end.time_ms is not None:
                ends = {topic: at_time(self._cluster, view, end.time_ms) for topic, view in views.items()}
            else:
                if self._end is None:
                    self._end = offset_at(self._cluster, end, views)
                marks = {topic: cut.marks for topic, cut in self._end.items()}
                ends = {topic: {one: mark.position for one, mark in marks.get(topic, {}).items()} for topic in views}
            self._bounded = views, {topic: view.bounded(ends[topic]) for topic, view in views.items()}
        return self._bounded[1]

    # -- what Spark asks for

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return offsets.dump(offset_at(self._cluster, self._task.options.start, self._views()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        options = self._task.options
        if options.rows_max:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Splits from now on are not followed, so that the run ends."""
        self._cluster.capabilities().check(self._task.options.counting())
        self._frozen = self._cluster.views(topics_of(self._cluster, self._task.options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        asked_at = self._cluster.clock.monotonic()
        began = self._reached = offsets.load(start)
        self._keep_after(began)
        reached = self._following(began, self._views(), limit)
        if reached is None and self._watcher is not None and self._frozen is None:
            reached = self._following(began, self._limited(self._watcher.views_since(asked_at)), limit)
        if reached is None:
            return start
        self._waiting_since = None
        self._reached = reached
        return offsets.dump(reached)

    def _following(self, began: Offset, views: Mapping[str, View], limit: ReadLimit) -> Offset | None:
        """Where a batch ends that begins here; None where there is nothing for one."""
        options = self._task.options
        settled = self._settled(began, views)
        ends: Mapping[cuts.Segment, Position] = {}
        if cuts.ahead(settled, views) and not self._waits(settled, views):
            rows_max, bytes_max = _limits(limit, options.bytes_max)
            ends = admitted(self._cluster, settled, views, rows_max, bytes_max, options.alignment)
        reached = cuts.advanced(settled, views, ends)
        return reached if ends or cuts.has_passed(began, reached) else None

    def _settled(self, start: Offset, views: Mapping[str, View], on_loss: cuts.OnLoss | None = None) -> dict[str, Cut]:
        on_loss = on_loss or self._on_loss(views)
        return {
            topic: cuts.settled(start.get(topic) or cuts.earliest(view), view, on_loss, self._task.options.wanted)
            for topic, view in views.items()
        }

    def _on_loss(self, views: Mapping[str, View]) -> cuts.OnLoss:
        """Where the cluster cannot say whether a deleted ledger had more entries, the subscription can: it has kept
        all that came after the query's offset, if it has consumed nothing since."""
        refuse = loss_taken(self._task.options)
        name = self._task.options.subscription

        def on_loss(error: Error) -> None:
            if name is not None and isinstance(error, LostData) and error.first is not None:
                segment = views[error.topic].segments[error.segment]
                backing = plan.backing_of(error.topic, error.segment, segment.opened())
                if not segment.is_trim_exact and self._kept(name, backing) <= error.first:
                    return
            refuse(error)

        return on_loss

    def _kept(self, name: str, backing: str) -> Position:
        """The first entry that the subscription keeps, and has kept since this process began."""
        return max(self._cluster.kept_from(name, backing), self._had.get(backing, EARLIEST))

    def _waits(self, settled: Offset, views: Mapping[str, View]) -> bool:
        """Too little to begin with, and not for too long yet. Nothing more comes for AvailableNow."""
        options = self._task.options
        if not options.rows_min or self._frozen is not None:
            return False
        now = self._cluster.clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if (now - self._waiting_since) * 1000 >= options.trigger_delay_ms:
            return False
        return self._backlog(settled, views)[0] < options.rows_min

    def _backlog(self, settled: Offset, views: Mapping[str, View]) -> tuple[int, int]:
        """Messages and bytes ahead."""
        ahead = cuts.ahead(settled, views)
        asked = {
            plan.backing_of(topic, one, settled[topic].marks[one]): {"start": message_id(begin)}
            for (topic, one), (begin, _) in ahead.items()
        }
        found = self._cluster.extents(asked).values() if asked else ()
        return sum(one.messages for one in found), sum(one.bytes for one in found)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The head, and how far behind the query is: shown in the progress as `sources[].latestOffset`."""
        views = self._views()
        made = offsets.dump({topic: cuts.latest(view) for topic, view in views.items()})
        try:
            # a loss is for `latestOffset` to report
            settled = self._settled(self._reached, views, lambda _: None) if self._reached else {}
            can = self._cluster.capabilities()
            if not can.lists_ledgers:
                return made
            rows, size = self._backlog(settled, views) if cuts.ahead(settled, views) else (0, 0)
        except (ClientError, ClusterCannot) as error:
            log.info("backlog unknown", extra={"reason": error.reason})
            return made
        segments = sum(len(cut.marks) for cut in settled.values())
        found = {**made, "backlogRows": rows, "backlogBytes": size, "segments": segments}
        return found if can.counts_messages else {**found, "backlogRowsEstimated": True}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from anabranch.spark.data_source import RangesPartition

        options, upto = self._task.options, offsets.load(end)
        found = plan.ranges(offsets.load(start), upto)
        if not options.wanted.is_all:
            found = self._of_interest(found, upto)
        return [RangesPartition(one) for one in plan.partitions(found, options.packing)]

    def _of_interest(self, found: Sequence[plan.Range], end: Offset) -> list[plan.Range]:
        """How a topic hashes keys never changes, so this follows from the offsets, too."""
        views, wanted = self._views(), self._task.options.wanted
        return [
            replace(one, ring_hash=views[one.topic].ring_hash)
            for one in found
            if cuts.is_of_interest(end[one.topic].marks[one.segment], views[one.topic], wanted)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read(self._task, getattr(partition, "ranges", ()))

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is in a finished batch. Spark says so when the next one begins, so `latestOffset`,
        whose start is the same, has said it already; not so for a batch that was found in the checkpoint."""
        self._keep_after(offsets.load(end))

    def _keep_after(self, offset: Offset) -> None:
        """The subscription, if there is one, keeps what comes after this offset and nothing before."""
        name = self._task.options.subscription
        if name is None:
            return
        if self._hold is None:
            self._hold = Hold(self._cluster, name)
            if self._cluster.capabilities().is_foreign:
                kept = unread_from(offset, self._seen())
                self._had = {backing: self._cluster.kept_from(name, backing) for backing in kept}
        self._hold.keep_after(offset, self._seen())

    def stop(self) -> None:
        """Spark never calls it; the process is ended, and readers on brokers end with their connections."""
        if self._watcher is not None:
            self._watcher.stop()


def _limits(limit: ReadLimit, bytes_max: int) -> tuple[int, int]:
    match limit:
        case ReadMaxRows():
            return int(limit.max_rows), bytes_max
        case ReadMaxBytes():
            return 0, int(limit.max_bytes)
        case _:
            return 0, 0
