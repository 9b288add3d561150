"""The Oxia store: the port on the other modules of this package.

Versions are Oxia's `version_id` plus the store's offset (`envelope.py`); times are the server's. A read is answered by
the shard's leader; `sync` makes each leader prove that it still leads. A write whose answer was lost is not repeated:
the caller reads again and decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from types import TracebackType
from typing import Self

from anabranch.metadata.envelope import Numbering
from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    RESERVED,
    Capabilities,
    Change,
    ChangeKind,
    Expected,
    Item,
    KeyMissing,
    Session,
    SessionLost,
    StoreIncompatible,
    StoreUnavailable,
    Version,
    Versioned,
    VersionMismatch,
    check_key,
    check_tree,
    check_value,
    decide_delete,
    is_within,
)
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.bulk import BulkWriter
from anabranch.metadata.oxia.notifications import ShardFeed
from anabranch.metadata.oxia.reader import Reader
from anabranch.metadata.oxia.records import BARRIER, EPOCH, Address, Plan, plan_blind, plan_over, versioned, wrap
from anabranch.metadata.oxia.sessions import TTL_MS_MIN, OxiaSession
from anabranch.metadata.oxia.shard_leaders import Cluster
from anabranch.metadata.oxia.shard_writer import ShardWriter
from anabranch.metadata.oxia.shards import ShardMap
from anabranch.metadata.store_security import NO_SECURITY, StoreSecurity
from anabranch.metadata.watch_fanout import TreeWatch, WatchFanout
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

DEADLINE_MS = 10_000
PUTS_AT_ONCE = 256
CAPABILITIES = Capabilities("oxia", is_durable=True, is_shared=True, has_snapshot_scan=False, ttl_ms_min=TTL_MS_MIN)

log = get_logger(__name__)


def open_oxia(
    rest: str, clock: Clock, *, deadline_ms: int = DEADLINE_MS, security: StoreSecurity = NO_SECURITY
) -> OxiaStore:
    """The store of the URL `oxia:` + rest, not opened yet."""
    return OxiaStore(Address.parse(rest), clock, deadline_ms=deadline_ms, security=security)


class OxiaStore:
    def __init__(
        self,
        address: Address,
        clock: Clock,
        *,
        deadline_ms: int = DEADLINE_MS,
        connect_address: Callable[[str], str] = lambda address: address,
        security: StoreSecurity = NO_SECURITY,
    ) -> None:
        """`connect_address` maps an address of the cluster to the one to connect to, for tunnels and proxies."""
        self._prefix = address.prefix
        self._cluster = Cluster(address.seeds, address.namespace, clock, deadline_ms / 1000, connect_address, security)
        self._reader = Reader(self._cluster)
        self._writers: dict[int, ShardWriter] = {}
        self._feeds: dict[int, ShardFeed] = {}
        self._sessions: set[OxiaSession] = set()
        self._watches = WatchFanout()
        self._tasks = TaskOwner("oxia-store")
        self._numbering = Numbering()
        self._bulk = BulkWriter(self._cluster, self._prefix, self._writers)
        self._is_open = False
        self._cluster.on_change(self._shards_changed)

    # Open and close

    async def open(self) -> None:
        assert not self._is_open, "already open"
        self._tasks = TaskOwner("oxia-store")
        until = self._cluster.deadline()
        try:
            await self._cluster.open()
            await asyncio.gather(*(feed.open(until) for feed in self._feeds.values()))
            self._numbering = await self._read_numbering()
        except BaseException:
            await self._shut()
            raise
        self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for result in await asyncio.gather(*(one.close() for one in tuple(self._sessions)), return_exceptions=True):
            if isinstance(result, StoreUnavailable):
                log.warning("Oxia session not closed; it will expire", extra={"reason": str(result)})
            elif isinstance(result, BaseException):
                raise result
        await self._shut()

    async def _shut(self) -> None:
        self._sessions.clear()
        self._watches.close()
        await asyncio.gather(*(writer.close() for writer in self._writers.values()))
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))
        self._writers.clear()
        self._feeds.clear()
        await self._tasks.close()
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def shards(self) -> Cluster:
        """The shard leaders, for tests."""
        return self._cluster

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    # Single keys

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        check_key(key)
        return await self._get(key, self._cluster.deadline())

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        self._check_open()
        check_key(key)
        check_value(key, value)
        owner = self._own(session)
        until = self._cluster.deadline()
        shard_id = self._shard_of(key)
        request = wire.Put(key=self._prefix + key)
        if owner is not None:
            request.session_id = await owner.part(shard_id, until)
        while True:
            plan = await self._plan(key, expected, until)
            request.value = wrap(bytes(value), plan.created_ms)
            if plan.native is None:
                request.ClearField("expected_version_id")
            else:
                request.expected_version_id = plan.native
            answer = (await self._writer(shard_id).write([request], [], until)).puts[0]
            if answer.status != wire.UNEXPECTED_VERSION_ID or not plan.may_repeat:
                break
        match answer.status:
            case wire.OK:
                feed = self._feeds.get(shard_id)
                if feed is not None:
                    await feed.wait_own_change(feed.own_changes.expect_version(answer.version.version_id), until)
                return self._numbering.logical(answer.version.version_id)
            case wire.UNEXPECTED_VERSION_ID:
                found = await self._get(key, until)
                raise VersionMismatch(key, expected, None if found is None else found.version)
            case wire.SESSION_DOES_NOT_EXIST:
                assert owner is not None
                owner.end()
                raise SessionLost("the session has ended")
            case other:
                raise StoreIncompatible(f"{key}: the server answered a put with status {other}")

    async def delete(self, key: str, *, expected: Expected) -> None:
        self._check_open()
        check_key(key)
        if expected is ABSENT:
            decide_delete(key, expected, None)
        until = self._cluster.deadline()
        native = await self._native_of(key, expected, until)
        shard_id = self._shard_of(key)
        stored = self._prefix + key
        feed = self._feeds.get(shard_id)
        passing = feed.own_changes.expect_delete(stored) if feed is not None else None
        try:
            request = wire.Delete(key=stored, expected_version_id=native)
            answer = (await self._writer(shard_id).write([], [request], until)).deletes[0]
            match answer.status:
                case wire.OK:
                    if feed is not None:
                        await feed.wait_own_change(passing, until)
                case wire.KEY_NOT_FOUND:
                    raise KeyMissing(key)
                case wire.UNEXPECTED_VERSION_ID:
                    found = await self._get(key, until)
                    if found is None:
                        raise KeyMissing(key)
                    raise VersionMismatch(key, expected, found.version)
                case other:
                    raise StoreIncompatible(f"{key}: the server answered a delete with status {other}")
        finally:
            if feed is not None and passing is not None:
                feed.own_changes.forget_delete(stored, passing)

    async def sync(self) -> None:
        """Write without effect to every shard: it needs a quorum and is ordered after all confirmed writes."""
        self._check_open()
        until = self._cluster.deadline()
        nothing = wire.Delete(key=self._prefix + BARRIER, expected_version_id=-1)
        await asyncio.gather(*(writer.write([], [nothing], until) for writer in self._writers.values()))
        self._numbering = await self._read_numbering()

    # Trees

    async def children(self, key: str) -> list[str]:
        self._check_open()
        tree = check_tree(key)
        names = await self._reader.names(self._prefix + tree, self._cluster.deadline())
        return sorted(name for name in names if f"{tree}/{name}" != RESERVED)

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        async with aclosing(self.bulk_scan(prefix)) as pages:
            async for page in pages:
                for item in page:
                    yield item

    async def bulk_scan(self, prefix: str) -> AsyncGenerator[list[Item], None]:
        self._check_open()
        tree = check_tree(prefix)
        if tree and (found := await self.get(tree)) is not None:
            yield [(tree, found)]
        cut = len(self._prefix)
        async with aclosing(self._reader.walk(self._prefix + tree)) as pages:
            async for page in pages:
                items = [(record.key[cut:], versioned(record, self._numbering)) for record in page]
                if not tree:
                    items = [item for item in items if not is_within(item[0], RESERVED)]
                if items:
                    yield items

    async def keys_about(self) -> int:
        self._check_open()
        return await self._reader.count(self._prefix)

    # Sessions and watches

    async def open_session(self, ttl_ms: int) -> Session:
        self._check_open()
        session = OxiaSession(self._cluster, ttl_ms, self._tasks)
        await session.part(self._cluster.shards.ids[0], self._cluster.deadline())
        self._sessions.add(session)
        session.listen(lambda _: self._sessions.discard(session) if session.is_lost else None)
        return session

    def watch(self, prefix: str) -> TreeWatch:
        self._check_open()
        return self._watches.add(prefix)

    # Bulk operations

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        self._check_open()
        if preserve:  # `raise_versions` may have been called by another client
            self._numbering = await self._read_numbering()
        for key, given in items:
            check_key(key)
            check_value(key, given.value)
            if preserve and given.version >= self._numbering.offset:
                raise BadRequest(f"{key}: version {given.version} is above the floor given to raise_versions")
        if preserve or self._numbering.offset == 0:
            await self._bulk.write(items, preserve=preserve)
        else:
            await self._put_each(dict(items))

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        self._check_open()
        for key in keys:
            check_key(key)
        await self._bulk.delete(keys)

    async def raise_versions(self, floor: Version) -> None:
        self._check_open()
        if await self.children("/"):
            raise BadRequest("versions can be raised only in an empty store")
        if floor >= self._numbering.offset:
            await self._write_numbering(Numbering(floor + 1))

    # Internals

    async def _put_each(self, items: Mapping[str, Versioned]) -> None:
        """One by one: after a move, a record must be read for its creation time."""
        waiting = list(items.items())
        for start in range(0, len(waiting), PUTS_AT_ONCE):
            puts = [self.put(key, given.value, expected=ANY) for key, given in waiting[start : start + PUTS_AT_ONCE]]
            for result in await asyncio.gather(*puts, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    async def _get(self, key: str, until: float) -> Versioned | None:
        record = await self._reader.record(self._prefix + key, until)
        return None if record is None else versioned(record, self._numbering)

    async def _plan(self, key: str, expected: Expected, until: float) -> Plan:
        plan = plan_blind(expected, self._numbering)
        if plan is None:
            record = await self._reader.record(self._prefix + key, until)
            plan = plan_over(key, expected, record, self._numbering)
        return plan

    async def _native_of(self, key: str, expected: Expected, until: float) -> int | None:
        """The version that the server compares for a delete."""
        if expected is ANY:
            return None
        if (plan := plan_blind(expected, self._numbering)) is not None:
            return plan.native
        record = await self._reader.record(self._prefix + key, until)
        decide_delete(key, expected, None if record is None else versioned(record, self._numbering).version)
        assert record is not None
        return record.version.version_id

    async def _read_numbering(self) -> Numbering:
        record = await self._reader.record(self._prefix + EPOCH, self._cluster.deadline())
        if record is None:
            return Numbering()
        try:
            return Numbering.from_bytes(record.value)
        except ValueError as error:
            raise StoreIncompatible(
                f"{EPOCH} has the value {record.value[:40]!r}, which this release cannot read"
            ) from error

    async def _write_numbering(self, numbering: Numbering) -> None:
        """Unconditional: called only for an empty store, and offsets only grow."""
        key = self._prefix + EPOCH
        shard_id = self._cluster.shards.of_key(key).id
        put = wire.Put(key=key, value=numbering.to_bytes())
        await self._writer(shard_id).write([put], [], self._cluster.deadline())
        self._numbering = numbering

    async def _reload_numbering(self) -> None:
        """Another client moved records in."""
        try:
            self._numbering = await self._read_numbering()
        except StoreUnavailable as error:
            log.warning("metadata epoch not read again; versions may be outdated", extra={"reason": str(error)})

    def _shard_of(self, key: str) -> int:
        return self._cluster.shards.of_key(self._prefix + key).id

    def keys_in_all_shards(self, below: str) -> list[str]:
        """For `interface.Sharded`."""
        found: dict[int, str] = {}
        for number in count():
            key = f"{below}-{number}"
            found.setdefault(self._shard_of(key), key)
            if len(found) == len(self._cluster.shards.ids):
                break
        return list(found.values())

    def _writer(self, shard_id: int) -> ShardWriter:
        writer = self._writers.get(shard_id)
        if writer is None:
            raise StoreUnavailable(f"Oxia shard {shard_id} no longer exists")
        return writer

    def _own(self, session: Session | None) -> OxiaSession | None:
        if session is None:
            return None
        if not isinstance(session, OxiaSession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        return session

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the metadata store is not open")

    def _on_changes(self, changes: Sequence[Change], is_gap: bool) -> None:
        """Publish changes. They have the server's keys, of all stores in this namespace."""
        if is_gap:
            self._watches.publish([Change(ChangeKind.INVALIDATED, "/")])
        cut = len(self._prefix)
        ours = [
            Change(change.kind, change.key[cut:]) for change in changes if change.key.startswith(self._prefix + "/")
        ]
        if is_gap or any(change.key == EPOCH for change in ours):
            self._tasks.spawn(self._reload_numbering(), "epoch")
        self._watches.publish(ours)

    def _shards_changed(self, shards: ShardMap) -> None:
        """The first map starts a writer and a feed per shard; later maps add, remove or move shards."""
        ids = shards.ids
        is_first = not self._feeds
        for shard_id in ids:
            if shard_id not in self._writers:
                self._writers[shard_id] = writer = ShardWriter(shard_id, self._cluster)
                writer.open()
                self._feeds[shard_id] = feed = ShardFeed(shard_id, self._cluster, self._on_changes)
                if not is_first:
                    self._tasks.spawn(feed.open(self._cluster.deadline()), "feed")
        for shard_id in [known for known in self._writers if known not in ids]:
            self._tasks.spawn(self._writers.pop(shard_id).close(), "close")
            self._tasks.spawn(self._feeds.pop(shard_id).close(), "close")
            self._watches.publish([Change(ChangeKind.INVALIDATED, "/")])
        for writer in self._writers.values():
            writer.leader_changed()
        for feed in self._feeds.values():
            feed.leader_changed()
        for session in tuple(self._sessions):
            session.shards_changed(ids)
