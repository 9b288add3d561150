"""The metadata port on ZooKeeper: who does what on which connection.

One connection carries all reads, ordinary writes and the watch; every session has its own. A write that went over a
session's connection raises the state that the reads must have reached (`catch_up`), so that everyone sees his own
writes, whatever servers the two are connected to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from anabranch.metadata.envelope import Numbering, wrap_moved
from anabranch.metadata.interface import (
    ANY,
    RESERVED,
    Capabilities,
    Expected,
    Item,
    OutcomeUnknown,
    Session,
    SessionLost,
    StoreUnavailable,
    Version,
    Versioned,
    check_key,
    check_tree,
    check_value,
    is_within,
)
from anabranch.metadata.watch_fanout import TreeWatch, Watches
from anabranch.metadata.zookeeper import bulk_read as bulk
from anabranch.metadata.zookeeper.bulk_write import BulkWriter
from anabranch.metadata.zookeeper.change_events import Changes
from anabranch.metadata.zookeeper.empty_node_sweeper import Sweeper
from anabranch.metadata.zookeeper.node_lookup import Looking
from anabranch.metadata.zookeeper.nodes import Nodes
from anabranch.metadata.zookeeper.paths import Keys, below
from anabranch.metadata.zookeeper.records import dressed, numbering_of, record_of
from anabranch.metadata.zookeeper.session import ZooKeeperSession
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock
from anabranch.zookeeper import jute
from anabranch.zookeeper.channel import Channel
from anabranch.zookeeper.connection import Connection, Phase, Server, nothing
from anabranch.zookeeper.jute import Code, Event, Node, ServerError

REQUEST_S = 10.0
TIMEOUT_MS = 12_000
"""Of the store's own ZooKeeper session; no key hangs on it."""

EPOCH = f"{RESERVED}/epoch"


class ZooKeeperStore:
    def __init__(
        self,
        servers: Sequence[Server],
        chroot: str,
        clock: Clock,
        *,
        request_s: float = REQUEST_S,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._request_s = request_s
        self._timeout_ms = timeout_ms
        self._keys = Keys(chroot)
        self._nodes = Nodes(self._keys)
        self._watches = Watches()
        self._sessions: set[ZooKeeperSession] = set()
        self._connection: Connection | None = None
        self._looking = Looking(clock, request_s)
        self._writes = 0
        self._written = asyncio.Event()
        self._is_open = False
        self._epoch_is_known = False
        self._ttl_ms_min = 0
        self._epoch_path = self._keys.path(EPOCH)

    # Life ------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._connection is not None:
            return
        self._changes = Changes(self._keys, self._watches, self._nodes.known.is_holder, self._looking.look)
        connection = self._connect(self._timeout_ms, renews=True, on_event=self._arrived, prepare=self._prepare)
        deadline = connection.deadline()
        await connection.open(deadline)
        self._connection = connection
        self._sweeper = Sweeper(self._nodes, connection)
        self._nodes.on_emptied = self._sweeper.add
        self._is_open = True
        try:
            self._ttl_ms_min = await self._shortest_session(deadline)
            if self._keys.chroot:
                parents = [*self._keys.parents(self._keys.chroot), self._keys.chroot]
                await self._nodes.make_holders(connection, parents, deadline)
            await self._numbering(deadline)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Lets writes that have begun finish, then ends sessions: their keys are gone when this returns."""
        connection = self._connection
        self._is_open = False
        if connection is None:
            return
        self._watches.close()
        try:
            async with asyncio.timeout(self._request_s):
                while self._writes:
                    self._written.clear()
                    await self._written.wait()
        except TimeoutError:
            pass  # those that still wait are told that the store is closed
        await asyncio.gather(*(session.close() for session in tuple(self._sessions)))
        await self._sweeper.close()
        self._connection = None
        await connection.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            "zookeeper", is_durable=True, is_shared=True, has_snapshot_scan=False, ttl_ms_min=self._ttl_ms_min
        )

    # One key ---------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        check_key(key)
        conn = self._opened()
        deadline = conn.deadline()
        node = await self._nodes.read(conn, self._keys.path(key), deadline)
        return record_of(node, await self._numbering(deadline)) if node is not None else None

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        check_key(key)
        check_value(key, value)
        main = self._opened()
        owner = self._own(session)
        deadline = main.deadline()
        await self._numbering(deadline)
        conn, session_id = (main, 0) if owner is None else (owner.connection, owner.connection.session_id)
        with self._writing():
            stat = await self._nodes.put(conn, key, bytes(value), expected, session_id, deadline)
        if owner is not None:
            owner.folders.add(below(self._keys.path(key.rpartition("/")[0]), ""))
            main.catch_up(max(conn.zxid, stat.modified_zxid))
        try:
            return (await self._numbering(deadline)).logical(stat.version)
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"{key} was written, but not told with what version") from error

    async def delete(self, key: str, *, expected: Expected) -> None:
        check_key(key)
        conn = self._opened()
        deadline = conn.deadline()
        await self._numbering(deadline)
        with self._writing():
            await self._nodes.delete(conn, key, expected, deadline)

    async def sync(self) -> None:
        conn = self._opened()
        await conn.call(jute.sync(self._keys.root), conn.deadline())

    # Trees -----------------------------------------------------------------------------------------------------------

    async def children(self, key: str) -> list[str]:
        tree = check_tree(key)
        conn = self._opened()
        paths = await self._nodes.children(conn, self._keys.folder(tree), self._skips(tree))
        keys = [self._keys.key(path) for path in paths]
        return sorted({one[len(tree) + 1 :].partition("/")[0] for one in keys if one is not None and one != tree})

    async def scan(self, prefix: str) -> AsyncIterator[Item]:
        async for page in self.bulk_scan(prefix):
            for item in page:
                yield item

    async def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        tree = check_tree(prefix)
        conn = self._opened()
        numbering = await self._numbering(conn.deadline())
        key_of = self._keys.key
        if self._keys.is_shared(tree):
            pages = bulk.walk_flat(conn, self._keys.folder(tree), self._skips(tree))
        else:
            pages = bulk.walk(conn, self._keys.path(tree), self._skips(tree), shows_root=bool(tree))
        async for page in pages:
            items = [
                (key, record)
                for path, node in page
                if (record := record_of(node, numbering)) is not None and (key := key_of(path)) is not None
            ]
            if items:
                yield items

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        conn = self._opened()
        if preserve:  # it may have been another store that made room
            await self.sync()
            self._epoch_is_known = False
        numbering = await self._numbering(conn.deadline())
        for key, record in items:
            check_key(key)
            check_value(key, record.value)
            if preserve and not record.version < numbering.offset:
                raise BadRequest(f"{key}: version {record.version} is not below what `raise_versions` was called with")
        records = {self._keys.path(key): record for key, record in items}

        def data_for(path: str, old: Node | None) -> bytes:
            record = records[path]
            if preserve:
                return wrap_moved(record.value, record.version, record.created_ms, record.modified_ms)
            return dressed(record.value, old, 0)

        with self._writing():
            await BulkWriter(self._nodes, conn, self._keys).write(records, data_for)

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        conn = self._opened()
        for key in keys:
            check_key(key)
        with self._writing():
            await BulkWriter(self._nodes, conn, self._keys).delete({self._keys.path(key) for key in keys})

    async def raise_versions(self, floor: Version) -> None:
        conn = self._opened()
        numbering = await self._numbering(conn.deadline())
        async for _ in self.bulk_scan("/"):
            raise BadRequest("versions can only be raised in an empty store")
        if floor < numbering.offset:
            return
        await self._nodes.put(conn, EPOCH, Numbering(floor + 1, native_end=0).to_bytes(), ANY, 0, conn.deadline())
        self._epoch_is_known = False
        await self._numbering(conn.deadline())

    # Sessions --------------------------------------------------------------------------------------------------------

    async def open_session(self, ttl_ms: int) -> Session:
        main = self._opened()
        session = ZooKeeperSession(self._clock, self._ended)
        connection = self._connect(max(ttl_ms, 1), on_phase=session.on_phase)
        connection.catch_up(main.zxid)
        self._sessions.add(session)
        try:
            await session.open(connection)
        except BaseException:
            self._sessions.discard(session)
            raise
        return session

    def _ended(self, session: ZooKeeperSession) -> None:
        self._sessions.discard(session)
        main = self._connection
        if main is not None:
            main.catch_up(session.connection.zxid)
            for folder in session.folders:
                self._sweeper.add(folder)

    def _own(self, session: Session | None) -> ZooKeeperSession | None:
        if session is None:
            return None
        if not isinstance(session, ZooKeeperSession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        return session

    async def _shortest_session(self, deadline: float) -> int:
        """What the server grants to those who ask for next to nothing."""
        probe = self._connect(1)
        await probe.open(deadline)
        granted_ms = probe.timeout_ms
        await probe.close()
        return granted_ms

    # Watches ---------------------------------------------------------------------------------------------------------

    def watch(self, prefix: str) -> TreeWatch:
        self._opened()
        return self._watches.add(prefix)

    async def _prepare(self, channel: Channel) -> None:
        """On every new channel: watch first, then tell that something may have been missed."""
        try:
            await channel.send(jute.watch_tree(self._keys.root), self._clock.monotonic() + self._request_s)
        except ServerError as error:
            if error.number == Code.UNIMPLEMENTED:
                raise StoreUnavailable("this ZooKeeper has no recursive watches; 3.6 or newer is needed") from error
            raise
        self._epoch_is_known = False
        if self._looking.use(channel):
            self._changes.missed()

    def _arrived(self, event: Event) -> None:
        if event.path == self._epoch_path:
            self._epoch_is_known = False
        self._changes.arrived(event)

    # Inside ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._writes += 1
        try:
            yield
        finally:
            self._writes -= 1
            self._written.set()

    def _opened(self) -> Connection:
        if self._connection is None or not self._is_open:
            raise StoreUnavailable("the metadata store is not open")
        return self._connection

    def _connect(
        self,
        timeout_ms: int,
        *,
        renews: bool = False,
        on_phase: Callable[[Phase], None] = lambda phase: None,
        on_event: Callable[[Event], None] = lambda event: None,
        prepare: Callable[[Channel], Awaitable[None]] = nothing,
    ) -> Connection:
        return Connection(
            self._servers,
            self._clock,
            timeout_ms=timeout_ms,
            request_s=self._request_s,
            renews=renews,
            on_phase=on_phase,
            on_event=on_event,
            prepare=prepare,
        )

    def _skips(self, tree: str) -> Callable[[str], bool]:
        """Nodes to leave out: at the root what nobody sees who does not ask for it, deep down what is beside `tree`."""
        if not tree:
            return self._keys.is_hidden
        if self._keys.is_shared(tree):
            return lambda path: not is_within(self._keys.key(path) or "", tree)
        return lambda path: False

    async def _numbering(self, deadline: float) -> Numbering:
        """As of all events that have arrived: read again after the epoch was changed or events may have been lost."""
        if not self._epoch_is_known:
            conn = self._connection
            if conn is None:
                raise StoreUnavailable("the metadata store is not open")
            self._epoch_is_known = True  # an event that arrives meanwhile undoes it
            try:
                node = await self._nodes.read(conn, self._epoch_path, deadline)
                self._nodes.numbering = numbering_of(node)
            except BaseException:
                self._epoch_is_known = False
                raise
        return self._nodes.numbering
