"""One watch stream for all watches of a store, resumed after every interruption.

etcd numbers all changes and keeps them until compaction, so after an interruption the stream continues after the last
revision that was received completely: nothing is missed. Watches get INVALIDATED only if those revisions were
compacted, or if the cluster returned with fewer revisions than before.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd.channel import RANGE, WATCH, EndpointConnection, EtcdChannel
from anabranch.metadata.etcd.keys import Keyspace
from anabranch.metadata.grpc_calls import CallFailed, answer
from anabranch.metadata.interface import Change, ChangeKind, check_tree
from anabranch.metadata.watch_fanout import TreeWatch
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

SILENCE_S = 2.0
"""After this long without a message, progress is requested; after as long again the stream counts as dead."""

_PAUSE_S = 0.1
_INVALIDATED = Change(ChangeKind.INVALIDATED, "/")

log = get_logger(__name__)


class RevisionWatch(TreeWatch):
    """Shows only changes after `floor`, the revision known when it was made."""

    def __init__(self, tree: str, registry: dict[TreeWatch, None], floor: int) -> None:
        super().__init__(tree, registry)
        self.floor = floor


class WatchStream:
    def __init__(self, channel: EtcdChannel, keyspace: Keyspace, clock: Clock) -> None:
        self._channel = channel
        self._keyspace = keyspace
        self._clock = clock
        self._registry: dict[TreeWatch, None] = {}
        self._tasks = TaskOwner("etcd-watch")
        self._next = 0  # the first revision not received yet; 0 before the first watch

    def add(self, prefix: str) -> RevisionWatch:
        """Registered at once: the stream starts after the last known revision, whenever it connects."""
        watch = RevisionWatch(check_tree(prefix), self._registry, self._channel.revision)
        if self._next == 0:
            self._next = self._channel.revision + 1
            self._tasks.spawn(self._run(), "stream")
        return watch

    async def close(self) -> None:
        await self._tasks.close()
        for watch in tuple(self._registry):
            watch.close()

    async def _run(self) -> None:
        while True:
            connection: EndpointConnection | None = None
            try:
                await self._check_revision()
                connection = self._channel.connection()
                await self._follow(connection)
            except CallFailed as failure:
                log.info(
                    "etcd watch interrupted; reconnecting", extra={"error": str(failure), "next_revision": self._next}
                )
                if connection is not None:
                    self._channel.leave(connection)
            except Error as error:  # no server is reachable: keep trying, nothing is missed meanwhile
                log.info("etcd watch waits for a server", extra={"error": str(error), "next_revision": self._next})
            await self._clock.sleep(_PAUSE_S)

    async def _check_revision(self) -> None:
        """A cluster whose revision is lower than before has lost data, so the stream cannot be resumed."""
        begin, _ = self._keyspace.below("")
        response = await self._channel.repeat(RANGE, pb.RangeRequest(key=begin, count_only=True))
        newest = response.header.revision
        if newest + 1 < self._next:
            log.warning(
                "etcd has lost revisions; all watches are invalidated",
                extra={"newest": newest, "next_revision": self._next},
            )
            self._channel.revision = newest
            self._invalidate(newest + 1)

    async def _follow(self, connection: EndpointConnection) -> None:
        begin, end = self._keyspace.below("")
        create = pb.WatchCreateRequest(key=begin, range_end=end, start_revision=self._next, fragment=True)
        call = await self._channel.stream(connection, WATCH)
        reading: asyncio.Task[Any] | None = None
        is_progress_requested = False
        try:
            await answer(call.write(pb.WatchRequest(create_request=create)))
            while True:
                reading = reading or asyncio.ensure_future(answer(call.read()))
                done, _ = await asyncio.wait({reading}, timeout=SILENCE_S)
                if not done:
                    if is_progress_requested:
                        raise CallFailed(grpc.StatusCode.UNAVAILABLE, "no message in time")
                    await answer(call.write(pb.WatchRequest(progress_request=pb.WatchProgressRequest())))
                    is_progress_requested = True
                    continue
                response = reading.result()
                reading, is_progress_requested = None, False
                if not isinstance(response, pb.WatchResponse):
                    raise CallFailed(await call.code(), await call.details() or "the stream ended")
                self._on_response(response)
        finally:
            call.cancel()
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def _on_response(self, response: pb.WatchResponse) -> None:
        if response.canceled:
            if response.compact_revision:
                self._invalidate(response.compact_revision + 1)
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, response.cancel_reason or "cancelled by the server")
        if not response.events:
            return  # created or progress; its revision may be ahead of events still to come (etcd before 3.5.8)
        for event in response.events:
            path = self._keyspace.path(event.kv.key)
            if path is None:
                continue
            change = Change(kind_of(event), path)
            for watch in tuple(self._registry):
                assert isinstance(watch, RevisionWatch)
                if event.kv.mod_revision > watch.floor:
                    watch.offer(change)
        # A revision can be fragmented over several messages; it is complete only with the last of them.
        self._next = response.events[-1].kv.mod_revision + (0 if response.fragment else 1)

    def _invalidate(self, next_revision: int) -> None:
        self._next = next_revision
        for watch in tuple(self._registry):
            assert isinstance(watch, RevisionWatch)
            watch.floor = min(watch.floor, next_revision - 1)
            watch.offer(_INVALIDATED)


def kind_of(event: pb.Event) -> ChangeKind:
    if event.type == pb.Event.DELETE:
        return ChangeKind.DELETED
    return ChangeKind.CREATED if event.kv.create_revision == event.kv.mod_revision else ChangeKind.MODIFIED
