"""The ZooKeeper store: which request goes over which connection, and errors of the client to errors of the port.

One connection carries all reads, ordinary writes and the watch; every session has its own. A write on a session's
connection raises the transaction that reads must have seen (`require_zxid`), so that clients read their own writes even
if the two connections lead to different servers.
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
from anabranch.metadata.store_security import NO_SECURITY, StoreSecurity
from anabranch.metadata.watch_fanout import TreeWatch, WatchFanout
from anabranch.metadata.zookeeper import bulk_read as bulk
from anabranch.metadata.zookeeper.bulk_write import BulkWriter
from anabranch.metadata.zookeeper.change_events import ChangeEvents
from anabranch.metadata.zookeeper.empty_node_sweeper import EmptyNodeSweeper
from anabranch.metadata.zookeeper.errors import translated
from anabranch.metadata.zookeeper.node_lookup import NodeLookup
from anabranch.metadata.zookeeper.nodes import Nodes
from anabranch.metadata.zookeeper.paths import PathMapping, child_path
from anabranch.metadata.zookeeper.records import encode_record, numbering_of, record_of
from anabranch.metadata.zookeeper.session import ZooKeeperSession
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock
from anabranch.zookeeper import jute
from anabranch.zookeeper.access import Access
from anabranch.zookeeper.address import Server
from anabranch.zookeeper.channel import Channel
from anabranch.zookeeper.connection import Connection, Phase, no_preparation
from anabranch.zookeeper.errors import Code, ServerError, ZooKeeperError, ZooKeeperUnavailable
from anabranch.zookeeper.jute import OPEN_ACL, Event, Node

REQUEST_S = 10.0
TIMEOUT_MS = 12_000
"""Timeout of the store's own ZooKeeper session, which owns no keys."""

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
        security: StoreSecurity = NO_SECURITY,
    ) -> None:
        """With a user, the nodes that the store creates are accessible only to this user."""
        self._servers = servers
        self._clock = clock
        self._request_s = request_s
        self._timeout_ms = timeout_ms
        self._keys = PathMapping(chroot)
        self._nodes = Nodes(self._keys, self._on_deleted)
        self._security, self._access = security, Access()
        self._watches = WatchFanout()
        self._sessions: set[ZooKeeperSession] = set()
        self._connection: Connection | None = None
        self._lookup = NodeLookup(clock, request_s)
        self._writes = 0
        self._written = asyncio.Event()
        self._is_open = False
        self._epoch_is_known = False
        self._ttl_ms_min = 0
        self._epoch_path = self._keys.path(EPOCH)

    # Open and close ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._connection is not None:
            return
        self._access = access_of(self._security)
        self._nodes.acl = self._access.acl
        self._changes = ChangeEvents(
            self._keys, self._watches, self._nodes.recent.is_intermediate, self._lookup.look_up
        )
        connection = self._connect(self._timeout_ms, renew_expired=True, on_event=self._on_event, prepare=self._prepare)
        deadline = connection.deadline()
        with translated:
            await connection.open(deadline)
            self._connection = connection
            self._sweeper = EmptyNodeSweeper(self._nodes, connection)
            self._is_open = True
            try:
                self._ttl_ms_min = await self._shortest_session(deadline)
                if self._keys.chroot:
                    shared = self._keys.parents(self._keys.chroot)
                    await self._nodes.create_intermediate_nodes(connection, shared, deadline, OPEN_ACL)
                    await self._nodes.create_intermediate_nodes(connection, [self._keys.chroot], deadline)
                await self._numbering(deadline)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Let pending writes finish, then end the sessions: their keys are deleted when this returns."""
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
            pass  # writes that are still pending fail with StoreUnavailable
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
        with translated:
            node = await self._nodes.read(conn, self._keys.path(key), deadline)
            return record_of(node, await self._numbering(deadline)) if node is not None else None

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        check_key(key)
        check_value(key, value)
        main = self._opened()
        owner = self._own(session)
        deadline = main.deadline()
        conn, session_id = (main, 0) if owner is None else (owner.connection, owner.connection.session_id)
        with translated:
            await self._numbering(deadline)
            with self._writing():
                stat = await self._nodes.put(conn, key, bytes(value), expected, session_id, deadline)
        if owner is not None:
            owner.parents.add(child_path(self._keys.path(key.rpartition("/")[0]), ""))
            main.require_zxid(max(conn.zxid, stat.modified_zxid))
        try:
            return (await self._numbering(deadline)).logical(stat.version)
        except (StoreUnavailable, ZooKeeperError) as error:
            raise OutcomeUnknown(f"{key} was written, but its version could not be determined") from error

    async def delete(self, key: str, *, expected: Expected) -> None:
        check_key(key)
        conn = self._opened()
        deadline = conn.deadline()
        with translated:
            await self._numbering(deadline)
            with self._writing():
                await self._nodes.delete(conn, key, expected, deadline)

    async def sync(self) -> None:
        conn = self._opened()
        with translated:
            await conn.call(jute.barrier(), conn.deadline())

    # Trees -----------------------------------------------------------------------------------------------------------

    async def children(self, key: str) -> list[str]:
        tree = check_tree(key)
        conn = self._opened()
        with translated:
            paths = await self._nodes.children(conn, self._keys.listing_node(tree), self._skips(tree))
        keys = [self._keys.key(path) for path in paths]
        return sorted({one[len(tree) + 1 :].partition("/")[0] for one in keys if one is not None and one != tree})

    async def scan(self, prefix: str) -> AsyncIterator[Item]:
        async for page in self.bulk_scan(prefix):
            for item in page:
                yield item

    async def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        tree = check_tree(prefix)
        conn = self._opened()
        key_of = self._keys.key
        if self._keys.is_shared(tree):
            pages = bulk.walk_flat(conn, self._keys.listing_node(tree), self._skips(tree))
        else:
            pages = bulk.walk(conn, self._keys.path(tree), self._skips(tree), shows_root=bool(tree))
        with translated:
            numbering = await self._numbering(conn.deadline())
            async for page in pages:
                items = [
                    (key, record)
                    for path, node in page
                    if (record := record_of(node, numbering)) is not None and (key := key_of(path)) is not None
                ]
                if items:
                    yield items

    async def keys_about(self) -> int:
        conn = self._opened()
        with translated:
            answer = await conn.call(jute.count_below(self._keys.root), conn.deadline())
            return jute.count_of(answer.body)

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        conn = self._opened()
        if preserve:  # `raise_versions` may have been called in another process
            await self.sync()
            self._epoch_is_known = False
        with translated:
            numbering = await self._numbering(conn.deadline())
        for key, record in items:
            check_key(key)
            check_value(key, record.value)
            if preserve and not record.version < numbering.offset:
                raise BadRequest(f"{key}: version {record.version} is above the floor given to `raise_versions`")
        records = {self._keys.path(key): record for key, record in items}

        def data_for(path: str, old: Node | None) -> bytes:
            record = records[path]
            if preserve:
                return wrap_moved(record.value, record.version, record.created_ms, record.modified_ms)
            return encode_record(record.value, old, 0)

        with translated, self._writing():
            await BulkWriter(self._nodes, conn, self._keys).write(records, data_for)

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        conn = self._opened()
        for key in keys:
            check_key(key)
        with translated, self._writing():
            await BulkWriter(self._nodes, conn, self._keys).delete({self._keys.path(key) for key in keys})

    async def raise_versions(self, floor: Version) -> None:
        conn = self._opened()
        async for _ in self.bulk_scan("/"):
            raise BadRequest("versions can only be raised in an empty store")
        with translated:
            numbering = await self._numbering(conn.deadline())
            if floor < numbering.offset:
                return
            await self._nodes.put(conn, EPOCH, Numbering(floor + 1, native_end=0).to_bytes(), ANY, 0, conn.deadline())
            self._epoch_is_known = False
            await self._numbering(conn.deadline())

    # Sessions --------------------------------------------------------------------------------------------------------

    async def open_session(self, ttl_ms: int) -> Session:
        main = self._opened()
        session = ZooKeeperSession(self._clock, self._on_session_end)
        connection = self._connect(max(ttl_ms, 1), on_phase=session.on_phase)
        connection.require_zxid(main.zxid)
        self._sessions.add(session)
        try:
            with translated:
                await session.open(connection)
        except BaseException:
            self._sessions.discard(session)
            raise
        return session

    def _on_session_end(self, session: ZooKeeperSession) -> None:
        self._sessions.discard(session)
        main = self._connection
        if main is not None:
            main.require_zxid(session.connection.zxid)
            for parent in session.parents:
                self._sweeper.add(parent)

    def _own(self, session: Session | None) -> ZooKeeperSession | None:
        if session is None:
            return None
        if not isinstance(session, ZooKeeperSession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        return session

    async def _shortest_session(self, deadline: float) -> int:
        """The session timeout that the server grants to a request for 1 ms."""
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
        """On every new channel: watch first, then publish that events may have been missed."""
        try:
            await channel.send(jute.watch_tree(self._keys.root), self._clock.monotonic() + self._request_s)
        except ServerError as error:
            if error.number == Code.UNIMPLEMENTED:
                raise ZooKeeperUnavailable(
                    "the server has no recursive watches; ZooKeeper 3.6 or newer is needed"
                ) from error
            raise
        self._epoch_is_known = False
        if self._lookup.use(channel):
            self._changes.on_gap()

    def _on_event(self, event: Event) -> None:
        if event.path == self._epoch_path:
            self._epoch_is_known = False
        self._changes.on_event(event)

    # Internals --------------------------------------------------------------------------------------------------------

    def _on_deleted(self, path: str) -> None:
        self._sweeper.add(path)

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
        renew_expired: bool = False,
        on_phase: Callable[[Phase], None] = lambda phase: None,
        on_event: Callable[[Event], None] = lambda event: None,
        prepare: Callable[[Channel], Awaitable[None]] = no_preparation,
    ) -> Connection:
        return Connection(
            self._servers,
            self._clock,
            timeout_ms=timeout_ms,
            request_s=self._request_s,
            renew_expired=renew_expired,
            access=self._access,
            on_phase=on_phase,
            on_event=on_event,
            prepare=prepare,
        )

    def _skips(self, tree: str) -> Callable[[str], bool]:
        """Nodes that a listing of `tree` leaves out: hidden ones at the root, siblings beyond the depth limit."""
        if not tree:
            return self._keys.is_hidden
        if self._keys.is_shared(tree):
            return lambda path: not is_within(self._keys.key(path) or "", tree)
        return lambda path: False

    async def _numbering(self, deadline: float) -> Numbering:
        """The numbering, read again after an event on the epoch key and after a reconnect."""
        if not self._epoch_is_known:
            conn = self._connection
            if conn is None:
                raise StoreUnavailable("the metadata store is not open")
            self._epoch_is_known = True  # an event that arrives during the read resets it
            try:
                node = await self._nodes.read(conn, self._epoch_path, deadline)
                self._nodes.numbering = numbering_of(node)
            except BaseException:
                self._epoch_is_known = False
                raise
        return self._nodes.numbering


def access_of(security: StoreSecurity) -> Access:
    """Reads the files. Raises CredentialsUnreadable."""
    tls = security.tls
    return Access(
        tls=None if tls is None else tls.context(),
        server_name="" if tls is None else tls.server_name,
        digest=f"{security.user}:{security.password()}" if security.user else "",
    )
