"""What changed on one shard, in order, resumed by offset after a break. Knows no watcher and no values.

The server numbers its write batches; each one's changes come under its offset. A number that does not follow on the
last one means that something was missed (trimmed away while we were gone, or another history): then everything known is
forgotten. A batch tells each key once, which is why our writers never put a key into a batch twice.

Writers wait here for their own change to pass: whoever wrote has told his own watchers before he goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import heappop, heappush

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import Change, ChangeKind, StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, as_error, is_worth_repeating
from anabranch.metadata.oxia.server_channel import NOTIFICATIONS, ServerChannel
from anabranch.metadata.oxia.shard_leaders import Cluster, Pauses
from anabranch.runtime.tasks import TaskOwner

PASS_S_MAX = 0.25  # a writer waits no longer for its own change: it is a courtesy
_KINDS = {
    wire.KEY_CREATED: ChangeKind.CREATED,
    wire.KEY_MODIFIED: ChangeKind.MODIFIED,
    wire.KEY_DELETED: ChangeKind.DELETED,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Digest:
    """What one batch says. `is_gap`: forget everything, `changes` tells only what is known to be new."""

    changes: list[Change]
    is_gap: bool


def digest(batch: wire.NotificationBatch, last_offset: int) -> Digest:
    """Keys are the server's; ranges that others deleted cannot be told key by key."""
    changes = []
    is_gap = batch.offset != last_offset + 1
    for entry in batch.entries:
        kind = _KINDS.get(entry.value.kind)
        if kind is None:
            is_gap = True
        else:
            changes.append(Change(kind, entry.key))
    return Digest(changes, is_gap)


class Passing:
    """Which of our own writes' changes have passed. Versions of a shard only grow; deletes are told by key."""

    def __init__(self) -> None:
        self._version = -1
        self._by_version: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap; the second number breaks ties
        self._ticket = 0
        self._deletes: dict[str, deque[asyncio.Future[None]]] = {}
        self.is_live = False

    def expect_delete(self, key: str) -> asyncio.Future[None]:
        """Call before the delete is sent; drop it again with `forget_delete`."""
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
        """None when it passed already."""
        if not self.is_live or version <= self._version:
            return None
        future = asyncio.get_running_loop().create_future()
        self._ticket += 1
        heappush(self._by_version, (version, self._ticket, future))
        return future

    def passed(self, batch: wire.NotificationBatch) -> None:
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
        """The stream is gone: nobody shall wait for it. The other history may number anew."""
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
    """Follows one shard and hands on its changes; `tell(changes, is_gap)` is called in the loop."""

    def __init__(self, shard_id: int, cluster: Cluster, tell: Callable[[Sequence[Change], bool], None]) -> None:
        self.shard_id = shard_id
        self.passing = Passing()
        self._cluster = cluster
        self._tell = tell
        self._offset: int | None = None
        self._peer: ServerChannel | None = None
        self._following: asyncio.Future[None] | None = None
        self._tasks = TaskOwner(f"oxia-feed-{shard_id}")
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, until: float) -> None:
        """Returns once nothing that happens from now on can be missed."""
        self._tasks.spawn(self._run(), "run")
        left_s = until - self._cluster.clock.monotonic()
        await self._cluster.within(left_s, asyncio.shield(self._ready), "no notifications")

    async def close(self) -> None:
        await self._tasks.close()
        self.passing.stop()
        self._ready.cancel()

    async def wait_passed(self, future: asyncio.Future[None] | None, until: float) -> None:
        if future is None or not self.passing.is_live:
            return
        try:
            async with asyncio.timeout(min(PASS_S_MAX, until - self._cluster.clock.monotonic())):
                await future
        except TimeoutError:
            log.debug("a change of our own did not pass in time", extra={"shard": self.shard_id})

    async def _run(self) -> None:
        pauses = Pauses(self._cluster.clock)
        while True:
            try:
                peer = self._cluster.leader(self.shard_id)
                self._peer, self._following = peer, asyncio.ensure_future(self._follow(peer, pauses))
                await self._until_moved(self._following)
            except CallFailed as failed:
                if not self._ready.done() and not is_worth_repeating(failed):
                    self._ready.set_exception(as_error(failed, "following changes"))
                    return
                log.info("notifications interrupted", extra={"shard": self.shard_id, "reason": str(failed)})
            except AnswerUnreadable as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                    return
                log.warning("notifications are not readable", extra={"shard": self.shard_id, "reason": str(error)})
            except (StoreUnavailable, TimeoutError) as error:
                log.info("notifications wait for a leader", extra={"shard": self.shard_id, "reason": str(error)})
            finally:
                self.passing.stop()
            await pauses.wait()

    def leader_changed(self) -> None:
        """Leave a server that no longer leads: a hung one would not say so."""
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

    async def _follow(self, peer: ServerChannel, pauses: Pauses) -> None:
        if self._offset is not None and (now := await self._committed(peer)) < self._offset:
            self._offset = now  # less than we have seen: another history
            self._tell((), True)
        request = wire.NotificationsRequest(shard=self.shard_id, start_offset_exclusive=self._offset)
        self.passing.is_live = self._offset is not None
        async with aclosing(peer.flow(NOTIFICATIONS, request, wire.NotificationBatch)) as batches:
            async for batch in batches:
                pauses.reset()
                if self._offset is None:  # the first answer only tells where we are
                    self._offset = batch.offset
                    self.passing.is_live = True
                    if not self._ready.done():
                        self._ready.set_result(None)
                    continue
                found = digest(batch, self._offset)
                self._offset = batch.offset
                self._tell(found.changes, found.is_gap)
                self.passing.passed(batch)

    async def _committed(self, peer: ServerChannel) -> int:
        """Where the shard is now: what a stream without a beginning tells first."""
        async with asyncio.timeout(self._cluster.deadline_s):
            request = wire.NotificationsRequest(shard=self.shard_id)
            async with aclosing(peer.flow(NOTIFICATIONS, request, wire.NotificationBatch)) as batches:
                async for batch in batches:
                    return batch.offset
        raise StoreUnavailable(f"shard {self.shard_id} does not tell where it is")
