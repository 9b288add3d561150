"""Changes of one shard, in order, resumed by offset after an interruption.

The server numbers its write batches; the changes of each come under its offset. An offset that does not follow on the
last one means that changes were missed (trimmed, or another history), so everything is invalidated. A batch reports
each key once, which is why the shard writers never put a key into a batch twice.

Writers wait here until their own change was published, so that a writer's own watches are notified before it continues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import heappop, heappush

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import Change, ChangeKind, StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, is_retryable, port_error
from anabranch.metadata.oxia.server_channel import NOTIFICATIONS, ServerChannel
from anabranch.metadata.oxia.shard_leaders import Backoff, Cluster
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

OWN_CHANGE_S_MAX = 0.25  # a writer waits no longer for its own change, because it is not required
_KINDS = {
    wire.KEY_CREATED: ChangeKind.CREATED,
    wire.KEY_MODIFIED: ChangeKind.MODIFIED,
    wire.KEY_DELETED: ChangeKind.DELETED,
}

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BatchChanges:
    """The changes of one batch. With `is_gap` earlier ones were missed."""

    changes: list[Change]
    is_gap: bool


def read_batch(batch: wire.NotificationBatch, last_offset: int) -> BatchChanges:
    """Keys are the server's. A deleted range (by other clients) is reported as a gap."""
    changes = []
    is_gap = batch.offset != last_offset + 1
    for entry in batch.entries:
        kind = _KINDS.get(entry.value.kind)
        if kind is None:
            is_gap = True
        else:
            changes.append(Change(kind, entry.key))
    return BatchChanges(changes, is_gap)


class OwnChanges:
    """Which changes of this store's own writes were published. Puts are tracked by version, deletes by key."""

    def __init__(self) -> None:
        self._version = -1
        self._by_version: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap; the second number breaks ties
        self._ticket = 0
        self._deletes: dict[str, deque[asyncio.Future[None]]] = {}
        self.is_live = False

    def expect_delete(self, key: str) -> asyncio.Future[None]:
        """Call before the delete is sent, and `forget_delete` after it."""
        future = asyncio.get_running_loop().create_future()
        self._deletes.setdefault(key, deque()).append(future)
        return future

    def forget_delete(self, key: str, future: asyncio.Future[None]) -> None:
        waiting = self._deletes.get(key)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._deletes[key]

    def expect_version(self, version: int) -> asyncio.Future[None] | None:
        """None if it was published already."""
        if not self.is_live or version <= self._version:
            return None
        future = asyncio.get_running_loop().create_future()
        self._ticket += 1
        heappush(self._by_version, (version, self._ticket, future))
        return future

    def on_published(self, batch: wire.NotificationBatch) -> None:
        for entry in batch.entries:
            if entry.value.kind == wire.KEY_DELETED:
                if (waiting := self._deletes.get(entry.key)) is not None:
                    _wake(waiting.popleft())
                    if not waiting:
                        del self._deletes[entry.key]
            else:
                self._version = max(self._version, entry.value.version_id)
        while self._by_version and self._by_version[0][0] <= self._version:
            _wake(heappop(self._by_version)[2])

    def stop(self) -> None:
        """The stream ended: wake all waiters. The next stream may have other versions."""
        self.is_live = False
        self._version = -1
        for _, _, future in self._by_version:
            _wake(future)
        self._by_version.clear()
        for waiting in self._deletes.values():
            for future in waiting:
                _wake(future)
        self._deletes.clear()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ShardFeed:
    """Follows one shard; `on_changes(changes, is_gap)` is called in the loop."""

    def __init__(self, shard_id: int, cluster: Cluster, on_changes: Callable[[Sequence[Change], bool], None]) -> None:
        self.shard_id = shard_id
        self.own_changes = OwnChanges()
        self._cluster = cluster
        self._on_changes = on_changes
        self._offset: int | None = None
        self._peer: ServerChannel | None = None
        self._following: asyncio.Future[None] | None = None
        self._tasks = TaskOwner(f"oxia-feed-{shard_id}")
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, until: float) -> None:
        """Return once no later change can be missed."""
        self._tasks.spawn(self._run(), "run")
        left_s = until - self._cluster.clock.monotonic()
        await self._cluster.within(left_s, asyncio.shield(self._ready), "no notifications")

    async def close(self) -> None:
        await self._tasks.close()
        self.own_changes.stop()
        self._ready.cancel()

    async def wait_own_change(self, future: asyncio.Future[None] | None, until: float) -> None:
        if future is None or not self.own_changes.is_live:
            return
        try:
            async with asyncio.timeout(min(OWN_CHANGE_S_MAX, until - self._cluster.clock.monotonic())):
                await future
        except TimeoutError:
            log.debug("own change not published in time", extra={"shard": self.shard_id})

    async def _run(self) -> None:
        backoff = Backoff(self._cluster.clock)
        while True:
            try:
                peer = self._cluster.leader(self.shard_id)
                self._peer, self._following = peer, asyncio.ensure_future(self._follow(peer, backoff))
                await self._until_moved(self._following)
            except CallFailed as failed:
                if not self._ready.done() and not is_retryable(failed):
                    self._ready.set_exception(port_error(failed, "following changes"))
                    return
                log.info(
                    "Oxia notifications interrupted; reconnecting",
                    extra={"shard": self.shard_id, "reason": str(failed)},
                )
            except AnswerUnreadable as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                    return
                log.warning(
                    "Oxia notifications not readable; reconnecting",
                    extra={"shard": self.shard_id, "reason": str(error)},
                )
            except (StoreUnavailable, TimeoutError) as error:
                log.info(
                    "Oxia notifications wait for a shard leader", extra={"shard": self.shard_id, "reason": str(error)}
                )
            finally:
                self.own_changes.stop()
            await backoff.wait()

    def leader_changed(self) -> None:
        """Leave a server that no longer leads, because a hanging one would not end the stream."""
        shard = self._cluster.shards.find(self.shard_id)
        if self._following is not None and self._peer is not None:
            if shard is not None and shard.leader and shard.leader != self._peer.address:
                self._following.cancel()

    async def _until_moved(self, following: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait({following})
            if not following.cancelled():
                following.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            self._following = None

    async def _follow(self, peer: ServerChannel, backoff: Backoff) -> None:
        if self._offset is not None and (now := await self._committed(peer)) < self._offset:
            self._offset = now  # lower than before: another history
            self._on_changes((), True)
        request = wire.NotificationsRequest(shard=self.shard_id, start_offset_exclusive=self._offset)
        self.own_changes.is_live = self._offset is not None
        async with aclosing(peer.stream(NOTIFICATIONS, request, wire.NotificationBatch)) as batches:
            async for batch in batches:
                backoff.reset()
                if self._offset is None:  # the first answer has only the present offset
                    self._offset = batch.offset
                    self.own_changes.is_live = True
                    if not self._ready.done():
                        self._ready.set_result(None)
                    continue
                found = read_batch(batch, self._offset)
                self._offset = batch.offset
                self._on_changes(found.changes, found.is_gap)
                self.own_changes.on_published(batch)

    async def _committed(self, peer: ServerChannel) -> int:
        """The present offset of the shard: the first answer of a stream without a start offset."""
        async with asyncio.timeout(self._cluster.deadline_s):
            request = wire.NotificationsRequest(shard=self.shard_id)
            async with aclosing(peer.stream(NOTIFICATIONS, request, wire.NotificationBatch)) as batches:
                async for batch in batches:
                    return batch.offset
        raise StoreUnavailable(f"shard {self.shard_id} does not report its offset")
