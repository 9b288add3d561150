"""Opens a topic as its owner: reads its record, seals its ledgers, raises the epoch, replays its cursors.

Opening needs one metadata write. It also announces the ledgers that the new owner will write to, so that the first
append and the first cursor need no further write. Recovery of the former owner's log has been done before this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from anabranch.model.errors import AlreadyExists, NotFound
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_codec import BadStateRecord, CursorSaved, decode
from anabranch.storage.cursor.state_replay import Replay
from anabranch.storage.interface import CorruptEntry, LedgerAllocator, LedgerStore, Superseded
from anabranch.storage.ledger.ledger_chain import LedgerChain
from anabranch.storage.record_store import RecordRaced, RecordStore
from anabranch.storage.topic.topic_record import (
    LedgerRow,
    TopicRecord,
    chain_of,
    decode_record,
    encode_record,
    ledgers_of,
    tombstone_of,
)

log = get_logger(__name__)

_READ_ENTRIES, _READ_BYTES = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenedTopic:
    name: str
    key: str
    record: TopicRecord
    version: int
    chain: LedgerChain
    data_ledger: int | None  # ledger for appends; None if the topic is terminated
    state_ledger: int
    old_state_ledgers: tuple[int, ...]
    state_entries: tuple[int, ...]  # lengths of the old state ledgers

    async def replay(self, ledgers: LedgerStore, make_cursor: Callable[[CursorSaved], Cursor]) -> Replay:
        replayed = Replay(make_cursor)
        for ledger, end in zip(self.old_state_ledgers, self.state_entries, strict=True):
            await _replay_ledger(ledgers, ledger, end, replayed)
        return replayed


def record_key(name: str) -> str:
    return name if name.startswith("/") else f"/topic-logs/{name}"


async def open_topic(
    name: str,
    *,
    ledgers: LedgerStore,
    metadata: RecordStore,
    ids: LedgerAllocator,
    clock: Clock,
    create: bool,
    ownership_epoch: int | None = None,
    create_with: Mapping[str, str] | None = None,
    is_first: bool = False,
) -> OpenedTopic:
    """`ownership_epoch` grows from owner to owner; None: there is only one broker.

    Opening seals the ledgers of the current owner, so a former owner is refused here, before it has changed anything.

    `create_with`: properties of a topic that is created, written with it. A tombstone counts as no topic. `is_first`:
    create without reading first; AlreadyExists if there is a record, even a tombstone.
    """
    key = record_key(name)
    if is_first:
        try:
            fresh = TopicRecord(epoch=0, properties=dict(create_with or {}))
            return await _take(name, key, fresh, None, ledgers, metadata, ids, clock.now_ms(), ownership_epoch)
        except RecordRaced as raced:
            raise AlreadyExists(f"{name} already has a record") from raced
    while True:
        found = await metadata.load(key)
        old = None if found is None else decode_record(found.value)
        if old is not None and ownership_epoch is not None and old.ownership_epoch > ownership_epoch:
            raise Superseded(
                f"{name} was opened in ownership epoch {old.ownership_epoch}, later than {ownership_epoch}"
            )
        version = None if found is None else found.version
        if old is not None and old.is_deleted:
            if not old.is_tombstone:
                await finish_deletion(key, old, version, ledgers, metadata)
                continue
            old = (
                TopicRecord(epoch=old.epoch, properties=dict(create_with or {}), ownership_epoch=old.ownership_epoch)
                if create
                else None
            )
        if old is None and not create:
            raise NotFound(f"no topic log {name}")
        try:
            old = old or TopicRecord(epoch=0, properties=dict(create_with or {}))
            return await _take(name, key, old, version, ledgers, metadata, ids, clock.now_ms(), ownership_epoch)
        except RecordRaced:
            log.info("topic record changed while the topic was opened; trying again", extra={"topic": name})


async def _take(
    name: str,
    key: str,
    record: TopicRecord,
    version: int | None,
    ledgers: LedgerStore,
    metadata: RecordStore,
    ids: LedgerAllocator,
    now_ms: int,
    ownership_epoch: int | None,
) -> OpenedTopic:
    rows = await asyncio.gather(*(_sealed(row, ledgers, now_ms) for row in record.ledgers))
    lengths = await asyncio.gather(*(ledgers.summarize(ledger) for ledger in record.state_ledgers))
    states = tuple((summary.ledger_id, summary.entries) for summary in lengths if summary.entries)
    chain = chain_of(replace(record, ledgers=tuple(rows)))
    sealed = tuple(row for row in rows if row.entries)
    above = max((row.id for row in record.ledgers), default=max(chain.last.ledger, 0))
    data_ledger = await ids.allocate(above) if record.terminated_at is None else None
    state_ledger = await ids.allocate(above)
    emptied = {row.id for row in rows if not row.entries} | {s.ledger_id for s in lengths if not s.entries}
    if record.compacting is not None:
        emptied.add(record.compacting)  # the former owner did not finish it
    record = replace(
        record,
        epoch=record.epoch + 1,
        ledgers=sealed if data_ledger is None else (*sealed, LedgerRow(data_ledger)),
        state_ledgers=(*(ledger for ledger, _ in states), state_ledger),
        garbage=tuple(sorted({*record.garbage, *emptied})),
        last=chain.last,
        origin=record.origin if record.state_ledgers else state_ledger,  # a topic that was ever opened has some
        created_ms=record.created_ms if record.state_ledgers else now_ms,
        compacting=None,
        ownership_epoch=record.ownership_epoch if ownership_epoch is None else ownership_epoch,
    )
    try:
        version = await metadata.save(key, encode_record(record), version=version)
    except RecordRaced:
        for ledger in (data_ledger, state_ledger):  # nothing names them
            if ledger is not None:
                await ledgers.delete(ledger)
        raise
    return OpenedTopic(
        name=name,
        key=key,
        record=record,
        version=version,
        chain=chain,
        data_ledger=data_ledger,
        state_ledger=state_ledger,
        old_state_ledgers=tuple(ledger for ledger, _ in states),
        state_entries=tuple(entries for _, entries in states),
    )


async def _sealed(row: LedgerRow, ledgers: LedgerStore, now_ms: int) -> LedgerRow:
    """The row with its final length; the former owner writes no more."""
    if row.entries is not None:
        return row
    summary = await ledgers.summarize(row.id)
    return LedgerRow(
        row.id,
        summary.entries,
        summary.messages,
        summary.bytes,
        summary.file_bytes,
        now_ms,
        summary.last_publish_ms,
    )


async def _replay_ledger(ledgers: LedgerStore, ledger: int, end: int, replayed: Replay) -> None:
    at = 0
    while at < end:
        try:
            entries = await ledgers.read(ledger, at, end, _READ_ENTRIES, _READ_BYTES)
            if not entries:
                break
            for entry in entries:
                at = entry.position.entry + 1
                replayed.feed(decode(entry.payload))
        except CorruptEntry as error:
            log.error(
                "damaged cursor state skipped; messages may be redelivered",
                extra={"file": error.path, "offset": error.offset},
            )
            at += 1
        except BadStateRecord as error:
            log.error(
                "unreadable cursor state skipped", extra={"ledger": ledger, "entry": at - 1, "reason": str(error)}
            )


async def finish_deletion(
    key: str, record: TopicRecord, version: int | None, ledgers: LedgerStore, metadata: RecordStore
) -> None:
    """Delete ledgers first and the record last, so that an interrupted deletion can be continued."""
    for ledger in ledgers_of(record):
        await ledgers.delete(ledger)
    if not record.leaves_tombstone:
        await metadata.remove(key)
        return
    try:
        await metadata.save(key, encode_record(tombstone_of(record, record.properties)), version=version)
    except RecordRaced:
        log.info("topic deletion was finished by another broker", extra={"topic": key})
