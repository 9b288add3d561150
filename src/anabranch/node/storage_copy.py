"""Copies the ledgers of a stopped cluster from files to bookies. Topic records stay as they are, because ids stay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.migration.follow import open_current
from anabranch.metadata.open import bare_store
from anabranch.model.errors import BadRequest
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.node.wiring.stores import BLOCKING_THREADS, TOPIC_RECORDS, ledger_owner, stored_publish_time
from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.chance import SystemChance
from anabranch.runtime.clock import Clock
from anabranch.runtime.disk import RealDisk
from anabranch.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from anabranch.storage.bookkeeper.settings import parse_storage_url
from anabranch.storage.ledger_copy import CopyProgress, LedgerCopy
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings
from anabranch.storage.topic.topic_record import decode_record, ledgers_of

__all__ = ["CopyProgress", "copy_files_to_bookies"]

CACHE_BYTES = 8 << 20
UNNEEDED = ("garbage", "compacting")


async def copy_files_to_bookies(
    data: Path, metadata_url: str, storage_url: str, clock: Clock, on_started: Callable[[CopyProgress], None]
) -> CopyProgress:
    """Raises VolumeBusy while a broker of the data directory runs, CopyFailed, BadRequest."""
    target_url = parse_storage_url(storage_url)
    if not (data / "volume.json").exists():
        raise BadRequest(f"{data} is no data directory of brokers: it has no volume.json")
    async with AsyncExitStack() as stack:
        blocking = ThreadBlocking(BLOCKING_THREADS)
        stack.push_async_callback(blocking.close)
        _, metadata = await open_current(metadata_url, lambda url: bare_store(url, clock), clock.now_ms())
        stack.push_async_callback(metadata.close)
        files: EmbeddedLedgerStore | None = None
        for broker in sorted(one.name for one in (data / "brokers").iterdir()):
            settings = StorageSettings(dir=data, broker_id=broker)
            files = EmbeddedLedgerStore(settings, RealDisk(), blocking, clock, stored_publish_time)
            await stack.enter_async_context(files)  # locks the broker's directory, and recovers its log
        if files is None:
            raise BadRequest(f"{data} has no broker: nothing was ever written there")
        ledgers = await _needed(metadata)
        target = BookKeeperLedgerStore(
            target_url,
            clock,
            SystemChance(),
            stored_publish_time,
            cache_bytes=CACHE_BYTES,
            owner=await ledger_owner(MetadataRecords(metadata)),
        )
        await stack.enter_async_context(target)
        await target.nodes.raise_ids(max(files.highest_id, max(ledgers, default=0)))
        copy = LedgerCopy(files, target)
        on_started(copy.progress)
        return await copy.run(ledgers)


async def _needed(metadata: MetadataStore) -> set[int]:
    found: set[int] = set()
    async for _, stored in metadata.scan(TOPIC_RECORDS):
        record = decode_record(stored.value) if stored.value else None
        if record is not None and not record.is_deleted:
            found.update(ledger for ledger, kind in ledgers_of(record).items() if kind not in UNNEEDED)
    return found
