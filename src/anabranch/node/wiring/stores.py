"""The stores of a broker: metadata store, ledgers, catalog and topic logs.

Metadata is opened first, then storage, which recovers after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from anabranch.broker.admin.stores.ledgers import LedgersAdmin
from anabranch.broker.catalog.catalog import Catalog
from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.migration.follow import open_current
from anabranch.metadata.migration.service import MetadataMigration
from anabranch.metadata.migration.switching_store import SwitchingStore
from anabranch.metadata.open import bare_store
from anabranch.metadata.write_gate import GatedStore
from anabranch.model.names import TopicName
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.node.adapters.segment_logs import NodeSegmentLogs
from anabranch.node.settings.node import NodeSettings
from anabranch.protocol.entry import publish_time_of
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.frames import FRAME_OVERHEAD_MAX
from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.chance import SystemChance, secret_bytes
from anabranch.runtime.clock import Clock
from anabranch.runtime.disk import RealDisk
from anabranch.storage.interface import LedgerAllocator, LedgerStore, Payload
from anabranch.storage.ledger.ledger_ids import LedgerIds
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.record_store import RecordRaced, RecordStore
from anabranch.storage.topic.topic_log import TopicLog

if TYPE_CHECKING:
    from anabranch.storage.bookkeeper.ledger_inspection import LedgerInspection

BLOCKING_THREADS = 4
TOPIC_RECORDS = "/managed"
LEDGER_OWNER = "/ledger-owner"
BUSY_SECONDS = 10.0  # to wait for a peer that is still recovering this broker's log

OwnershipEpochOf = Callable[[TopicName], int | None]
"""Ownership epoch of this broker for a topic; None for a broker alone."""


class NodeLedgers(LedgerStore, Protocol):
    """What a node asks of its ledger store beside the port."""

    @property
    def volume_id(self) -> str:
        """Brokers of one cluster have the same."""

    @property
    def generation(self) -> int:
        """Grows with every start of this broker."""

    def check_writable(self) -> None:
        """Raises the error that an append would get now."""

    def check_fence(self) -> None:
        """Notices that another process has taken over, even while nothing is written here."""

    async def flush(self) -> None:
        """Make sealed ledgers readable for other brokers."""

    async def recover_peer(self, broker_id: str, incarnation: int) -> object:
        """Fence a dead broker, and make readable what it has confirmed."""


@dataclass(frozen=True, slots=True)
class Stores:
    settings: NodeSettings
    clock: Clock
    blocking: ThreadBlocking
    metadata: GatedStore
    migration: MetadataMigration
    ledgers: NodeLedgers
    catalog: Catalog
    records: MetadataRecords
    ids: LedgerAllocator
    inspection: LedgerInspection | None  # of ledgers on BookKeeper

    def ledgers_admin(self) -> LedgersAdmin:
        async def records() -> AsyncIterator[tuple[str, bytes]]:
            async for key, found in self.metadata.scan(TOPIC_RECORDS):
                if found.value:
                    yield key, found.value

        return LedgersAdmin(self.inspection, records)

    def topic_logs(self, ownership_epoch_of: OwnershipEpochOf) -> Callable[[TopicName], Awaitable[TopicLog]]:
        async def open_log(name: TopicName) -> TopicLog:
            return await TopicLog.open(
                self.catalog.topic_key(name),
                ledgers=self.ledgers,
                metadata=self.records,
                ids=self.ids,
                clock=self.clock,
                settings=self.settings.topics,
                ownership_epoch=ownership_epoch_of(name),
            )

        return open_log

    def segment_logs(self, ownership_epoch_of: OwnershipEpochOf) -> NodeSegmentLogs:
        return NodeSegmentLogs(
            ledgers=self.ledgers,
            records=self.records,
            ids=self.ids,
            clock=self.clock,
            settings=self.settings.topics,
            retention=self.settings.scalable_topics.retention,
            ownership_epoch_of=ownership_epoch_of,
            children=self.metadata.children,
        )


async def open_stores(settings: NodeSettings, clock: Clock, stack: AsyncExitStack) -> Stores:
    if not (settings.storage.url and settings.metadata.url):
        settings.storage.dir.mkdir(parents=True, exist_ok=True)
    blocking = ThreadBlocking(BLOCKING_THREADS)
    stack.push_async_callback(blocking.close)
    metadata, migration = await _open_metadata(settings, clock, stack)
    records = MetadataRecords(metadata)
    ledgers, ids, inspection = await _open_ledgers(settings, clock, blocking, records, stack)
    catalog = Catalog(metadata, settings.broker)
    await catalog.ensure_defaults()
    return Stores(settings, clock, blocking, metadata, migration, ledgers, catalog, records, ids, inspection)


async def _open_ledgers(
    settings: NodeSettings, clock: Clock, blocking: ThreadBlocking, records: MetadataRecords, stack: AsyncExitStack
) -> tuple[NodeLedgers, LedgerAllocator, LedgerInspection | None]:
    """The ledger store that `storage.url` names, what allocates its ledgers, and what shows them to operators."""
    if settings.storage.url:
        # Imported here: a broker on files would spend a part of its start on it.
        from anabranch.storage.bookkeeper.ledger_inspection import LedgerInspection
        from anabranch.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
        from anabranch.storage.bookkeeper.settings import parse_storage_url

        store = BookKeeperLedgerStore(
            parse_storage_url(settings.storage.url),
            clock,
            SystemChance(),
            stored_publish_time,
            cache_bytes=settings.storage.cache_bytes,
            generation=await next_incarnation(records, settings.storage.broker_id),
            owner=await ledger_owner(records),
        )
        await stack.enter_async_context(store)
        return store, store, LedgerInspection(store, clock)
    embedded = await stack.enter_async_context(
        EmbeddedLedgerStore(
            settings.storage,
            RealDisk(),
            blocking,
            clock,
            stored_publish_time,
            busy_seconds=BUSY_SECONDS if settings.cluster.enabled else 0.0,
        )
    )
    return embedded, LedgerIds(records, floor=embedded.highest_id), None


def within_storage_limits(settings: NodeSettings) -> NodeSettings:
    """On bookies, a message is never larger than the largest entry that they accept. Clients learn the limit."""
    if not settings.storage.url:
        return settings
    from anabranch.storage.bookkeeper.ledger_writer import PAYLOAD_BYTES_MAX

    message_bytes_max = min(settings.broker.message_bytes_max, PAYLOAD_BYTES_MAX - FRAME_OVERHEAD_MAX)
    return replace(settings, broker=replace(settings.broker, message_bytes_max=message_bytes_max))


async def ledger_owner(records: RecordStore) -> str:
    """The id of this cluster in the metadata of its ledgers: several clusters may share the bookies."""
    while True:
        found = await records.load(LEDGER_OWNER)
        if found is not None:
            return found.value.decode()
        try:
            await records.save(LEDGER_OWNER, secret_bytes(16).hex().encode(), version=None)
        except RecordRaced:
            continue


async def next_incarnation(records: RecordStore, broker_id: str) -> int:
    """The number of this start of a broker that has no directory to count in: higher than that of every earlier one."""
    key = f"/broker-incarnations/{broker_id}"
    while True:
        found = await records.load(key)
        number = 1 if found is None else int(found.value) + 1
        try:
            await records.save(key, b"%d" % number, version=None if found is None else found.version)
        except RecordRaced:
            continue
        return number


async def _open_metadata(
    settings: NodeSettings, clock: Clock, stack: AsyncExitStack
) -> tuple[GatedStore, MetadataMigration]:
    """The store that `metadata.url` names, or the one that its metadata was moved to."""

    def open_target(url: str) -> MetadataStore:
        return bare_store(url, clock, settings.metadata.deadline_ms)

    url, real = await open_current(settings.metadata_url, open_target, clock.now_ms())
    switching = SwitchingStore(real)
    store = GatedStore(switching)
    stack.push_async_callback(store.close)
    migration = MetadataMigration(
        switching,
        store.gate,
        url,
        name=settings.storage.broker_id,
        open_target=open_target,
        clock=clock,
        chance=SystemChance(),
    )
    stack.push_async_callback(migration.close)
    await migration.open(has_peers=settings.cluster.enabled)
    return store, migration


def stored_publish_time(payload: Payload) -> int:
    """0 for an entry that is no message: ledgers also hold the state of topics."""
    try:
        return publish_time_of(payload)
    except ProtocolError:
        return 0
