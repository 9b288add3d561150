"""The etcd store: how each call of the port becomes reads and transactions.

Every write is a transaction that compares the record's revision and the epoch. What a write needs of the present record
(revision, creation time) comes from the cache or is read first. If it was outdated, the transaction returns the present
record and the decision is made again. After a lost connection a write is not repeated but raises OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from anabranch.metadata.envelope import Numbering, wrap_timed
from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd import requests
from anabranch.metadata.etcd.bulk import BulkWriter
from anabranch.metadata.etcd.channel import DEADLINE_MS, DELETE, RANGE, TXN, EtcdChannel
from anabranch.metadata.etcd.keys import Keyspace
from anabranch.metadata.etcd.lease import TTL_MS_MIN, EtcdSession, grant
from anabranch.metadata.etcd.records import EtcdRecords, RecentRecord
from anabranch.metadata.etcd.scan import names_below, walk
from anabranch.metadata.etcd.watch import WatchStream
from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    Capabilities,
    Expected,
    Item,
    KeyMissing,
    RequestTooLarge,
    Session,
    SessionLost,
    StoreUnavailable,
    UnknownStore,
    ValueTooLarge,
    Version,
    Versioned,
    Watch,
    check_key,
    check_tree,
    check_value,
    decide_delete,
    decide_put,
)
from anabranch.metadata.store_security import NO_SECURITY, StoreSecurity
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import give_way

PORT = 2379
ALWAYS_READ = 2**62
"""As the numbering's `native_end`: after a move, no version maps to a revision without reading the record."""

CAPABILITIES = Capabilities("etcd", is_durable=True, is_shared=True, has_snapshot_scan=True, ttl_ms_min=TTL_MS_MIN)

log = get_logger(__name__)


class EtcdStore:
    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        clock: Clock,
        deadline_ms: int = DEADLINE_MS,
        security: StoreSecurity = NO_SECURITY,
    ) -> None:
        self._clock = clock
        self._channel = EtcdChannel(endpoints, clock, deadline_ms, security)
        self._records = EtcdRecords(self._channel, Keyspace(prefix))
        self._watch_stream = WatchStream(self._channel, self._records.keyspace, clock)
        self._sessions: set[EtcdSession] = set()

    # Open and close

    async def open(self) -> None:
        self._channel.open()
        self._watch_stream = WatchStream(
            self._channel, self._records.keyspace, self._clock
        )  # a closed one cannot be started again
        try:
            await self._records.load_epoch()
        except BaseException:
            await self._channel.close()
            raise

    async def close(self) -> None:
        if not self._channel.is_open:
            return
        await self._watch_stream.close()
        await asyncio.gather(*(session.close() for session in tuple(self._sessions)))
        await self._channel.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    # Single records

    async def get(self, key: str) -> Versioned | None:
        check_key(key)
        return await self._records.read(key)

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        check_key(key)
        check_value(key, value)
        owner = self._own(session)
        raw = self._records.keyspace.key(key)
        end = self._channel.end()
        seen = await self._before_put(key, expected, end)
        while True:
            now_ms = self._clock.now_ms()
            native, created_ms = (seen.native, seen.created_ms) if seen is not None else (0, now_ms)
            put = requests.put_op(raw, wrap_timed(bytes(value), created_ms, now_ms), owner.lease if owner else 0)
            epoch = self._records.epoch
            try:
                response = await self._txn(raw, native, put, end)
            except RequestTooLarge as error:
                raise ValueTooLarge(key, len(value)) from error
            except SessionLost:
                assert owner is not None
                owner.end()
                raise
            if response.succeeded:
                version = epoch.numbering.logical(response.header.revision)
                self._records.recent.put(key, RecentRecord(version, response.header.revision, created_ms))
                return version
            seen = self._note_refused(key, response)
            decide_put(key, expected, seen.version if seen is not None else None)
            if self._clock.monotonic() > end:
                raise StoreUnavailable(f"{key}: gave up, because other writers were always first")

    async def _before_put(self, key: str, expected: Expected, end: float) -> RecentRecord | None:
        """The record to replace, None to create it. It may be outdated; the put checks it."""
        if expected is ABSENT:
            return None
        seen = self._records.recent.get(key)
        if expected is ANY or (seen is not None and seen.version == expected):
            return seen
        seen = await self._records.read_recent(key, end)
        decide_put(key, expected, seen.version if seen is not None else None)
        return seen

    async def delete(self, key: str, *, expected: Expected) -> None:
        check_key(key)
        raw = self._records.keyspace.key(key)
        if expected is ANY:
            deleted = await self._channel.once(DELETE, pb.DeleteRangeRequest(key=raw))
            self._records.recent.put(key, None)
            if deleted.deleted == 0:
                raise KeyMissing(key)
            return
        if expected is ABSENT:
            decide_delete(key, expected, None)
        assert isinstance(expected, int)
        end = self._channel.end()
        native = await self._before_delete(key, expected, end)
        while True:
            response = await self._txn(raw, native, requests.delete_op(raw), end)
            if response.succeeded:
                self._records.recent.put(key, None)
                return
            seen = self._note_refused(key, response)
            decide_delete(key, expected, seen.version if seen is not None else None)
            assert seen is not None
            native = seen.native
            if self._clock.monotonic() > end:
                raise StoreUnavailable(f"{key}: gave up, because other writers were always first")

    async def _before_delete(self, key: str, expected: Version, end: float) -> int:
        """The revision to compare with, greater than 0."""
        seen = self._records.recent.get(key)
        if seen is not None and seen.version == expected:
            return seen.native
        native = self._records.epoch.numbering.native(expected)
        if native is not None and native > 0:
            return native
        seen = await self._records.read_recent(key, end)
        decide_delete(key, expected, seen.version if seen is not None else None)
        assert seen is not None
        return seen.native

    async def _txn(self, raw: bytes, native: int, then: pb.RequestOp, end: float) -> pb.TxnResponse:
        epoch = self._records.keyspace.epoch, self._records.epoch.native
        return await self._channel.once(TXN, requests.guarded(raw, native, epoch, then), end=end)

    def _note_refused(self, key: str, refused: pb.TxnResponse) -> RecentRecord | None:
        self._records.note_epoch(requests.found(refused, 1))
        return self._records.note(key, requests.found(refused, 0))

    async def sync(self) -> None:
        """Reads are linearizable anyway; this one checks that the cluster is reachable."""
        await self._records.load_epoch()

    # Many records

    async def children(self, key: str) -> list[str]:
        return await names_below(self._channel, self._records, check_tree(key))

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        async for items in walk(self._channel, self._records, check_tree(prefix), is_snapshot=False):
            for item in items:
                yield item
            await give_way()

    async def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        async for items in walk(self._channel, self._records, check_tree(prefix), is_snapshot=True):
            yield items
            await give_way()

    async def keys_about(self) -> int:
        begin, end = self._records.keyspace.below("")
        request = pb.RangeRequest(key=begin, range_end=end, count_only=True)
        return int((await self._channel.repeat(RANGE, request)).count)

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        for key, given in items:
            check_key(key)
            check_value(key, given.value)
        await BulkWriter(self._channel, self._records, self._clock).write(items, preserve=preserve)

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await BulkWriter(self._channel, self._records, self._clock).delete(keys)

    async def raise_versions(self, floor: Version) -> None:
        """One transaction: it requires that only reserved keys exist and that the epoch is unchanged."""
        keyspace = self._records.keyspace
        await self._records.load_epoch()
        epoch = self._records.epoch
        numbering = Numbering(max(epoch.numbering.offset, floor + 1), ALWAYS_READ)
        now_ms = self._clock.now_ms()
        request = pb.TxnRequest(
            compare=[
                *(requests.compare_empty(part) for part in keyspace.unreserved()),
                requests.compare(keyspace.epoch, epoch.native),
            ],
            success=[requests.put_op(keyspace.epoch, wrap_timed(numbering.to_bytes(), now_ms, now_ms))],
        )
        response = await self._channel.once(TXN, request)
        await self._records.load_epoch()
        if not response.succeeded:
            raise BadRequest("versions can be raised only in an empty store")

    # Sessions and watches

    async def open_session(self, ttl_ms: int) -> Session:
        session = await grant(self._channel, self._clock, ttl_ms)
        self._sessions.add(session)
        session.listen(lambda event: self._sessions.discard(session) if session.is_lost else None)
        return session

    def watch(self, prefix: str) -> Watch:
        self._channel.connection()  # raises if not open
        return self._watch_stream.add(prefix)

    def _own(self, session: Session | None) -> EtcdSession | None:
        if session is None:
            return None
        if not isinstance(session, EtcdSession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        return session


def parse_url(rest: str) -> tuple[list[str], str]:
    """Endpoints and prefix of `//h:p,h:p/prefix`, what follows the scheme of a metadata URL."""
    hosts, slash, path = rest.removeprefix("//").partition("/")
    endpoints = [host if _has_port(host) else f"{host}:{PORT}" for host in hosts.split(",")]
    if not rest.startswith("//") or "" in hosts.split(","):
        raise UnknownStore("an etcd metadata URL is written etcd://HOST:PORT[,HOST:PORT][/PREFIX]")
    return endpoints, check_tree(slash + path.rstrip("/")) if path.strip("/") else ""


def _has_port(host: str) -> bool:
    """True for `h:1` and `[::1]:1`; False for `h`, `::1` and `[::1]`."""
    name, _, port = host.rpartition(":")
    return port.isdigit() and bool(name) and (":" not in name or name.endswith("]"))
