"""One topic: a chain of ledgers that is appended to and read, plus cursors and blobs (`topic_state`).

Everything durable goes through the ledger store, so topics, cursors and blobs share one group commit. The topic record
in the metadata store changes only when the set of ledgers changes.

The owner raises the record's `epoch` when it opens the topic. If a later write finds another epoch, another broker owns
the topic, and this one closes itself with `Fenced`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.runtime.clock import Clock
from anabranch.runtime.garbage import weak_call, weak_method
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_log import StateLog
from anabranch.storage.interface import Fenced, LedgerAllocator, LedgerStore, Payload, StorageError, StoredEntry
from anabranch.storage.record_store import RecordStore
from anabranch.storage.topic.compacted_view import CompactedView
from anabranch.storage.topic.compacted_view_swap import CompactedViewSwap
from anabranch.storage.topic.ledger_garbage import LedgerGarbage
from anabranch.storage.topic.next_ledger import NextLedger
from anabranch.storage.topic.ownership import TopicOwnership
from anabranch.storage.topic.retention import ledgers_to_drop, next_drop_ms
from anabranch.storage.topic.topic_appender import TopicAppender, TopicSink
from anabranch.storage.topic.topic_log_stats import CursorStats, LedgerStats, TopicLogStats
from anabranch.storage.topic.topic_open import OpenedTopic, finish_deletion, open_topic
from anabranch.storage.topic.topic_reader import TopicReader
from anabranch.storage.topic.topic_record import TopicRecord, with_chain
from anabranch.storage.topic.topic_state import TopicState

__all__ = ["StoredEntry", "TopicLog", "TopicLogSettings", "TopicSink", "TopicTerminated"]

log = get_logger(__name__)

CLOSED_LEDGERS_MAX = 4  # a topic that closes with more drops those past retention


class TopicTerminated(StorageError):
    """The topic is terminated and takes no more messages."""

    code = "topic-terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLogSettings:
    ledger_bytes_max: int = field(
        default=256 * 1024 * 1024, metadata={"help": "a topic continues in a new ledger past this"}
    )
    ledger_age_max_ms: int = field(
        default=4 * 3600 * 1000, metadata={"help": "… or when its ledger is this old and retention runs"}
    )
    retention_ms: int = field(default=0, metadata={"help": "acknowledged messages are kept this long; -1: for ever"})
    retention_bytes: int = field(default=0, metadata={"help": "… and up to this size; -1: without limit"})
    cursor_flush_ms: int = field(
        default=200, metadata={"help": "acknowledgements are written within this time; a crash before that redelivers"}
    )
    state_bytes_max: int = field(
        default=256 * 1024, metadata={"help": "a snapshot of all cursors is written after this much of changes"}
    )


class TopicLog:
    def __init__(
        self,
        opened: OpenedTopic,
        *,
        ledgers: LedgerStore,
        metadata: RecordStore,
        ids: LedgerAllocator,
        clock: Clock,
        settings: TopicLogSettings,
    ) -> None:
        """Called by `open` only. Its parts refer to it weakly: a cycle would keep a closed topic in memory."""
        owner = TopicOwnership(opened.key, opened.record, opened.version, metadata, weak_call(self._lost))
        save, check_usable = weak_method(self._save), weak_method(self._check_usable)
        self.name = opened.name
        self.chain = opened.chain
        self._owner = owner
        self._is_closed = False
        self._key = opened.key
        self._ledgers, self._metadata, self._clock = ledgers, metadata, clock
        self._settings = settings
        self._tasks = TaskOwner(f"topic {opened.name}")
        self._trim_lock = asyncio.Lock()
        self._garbage = LedgerGarbage(opened.record.garbage, ledgers, self._tasks)
        self.compacting = CompactedViewSwap(owner, ledgers, ids, self._garbage, save=save, check_usable=check_usable)
        self._reader = TopicReader(self.chain, ledgers, weak_call(self._skip_damaged))
        self.held_behind: Position | None = None  # everything after it is retained too
        self._next_data, self._next_state = NextLedger(ids), NextLedger(ids)
        self._next_state_ledger: int | None = None
        self._cursors: dict[str, Cursor] = {}
        blobs: dict[str, bytes] = {}
        self._state_log = StateLog(
            ledgers=ledgers,
            clock=clock,
            tasks=self._tasks,
            flush_ms=settings.cursor_flush_ms,
            delta_bytes_max=settings.state_bytes_max,
            ledger_id=opened.state_ledger,
            confirmed=opened.old_state_ledgers,
            cursors=self._cursors,
            blobs=blobs,
            replace=weak_method(self._replace_state_ledger),
            retire=self._garbage.discard,
        )
        state = self._state = TopicState(
            self.name,
            self.chain,
            self._state_log,
            self._cursors,
            blobs,
            reader=self._reader,
            check_owner=owner.check,
            check_usable=check_usable,
        )
        self.create_cursor, self.create_cursors = state.create_cursor, state.create_cursors
        self.delete_cursor = state.delete_cursor
        self.state, self.save_state = state.state, state.save_state
        self.save_state_nowait, self.flush_state = state.save_state_nowait, state.flush_state
        self._appender = TopicAppender(
            self.chain,
            ledgers=ledgers,
            clock=clock,
            tasks=self._tasks,
            ledger_bytes_max=settings.ledger_bytes_max,
            next_ledger=weak_method(self._announce_ledger),
            release=self._garbage.add,
            on_switched=weak_call(self._after_switch),
        )

    @staticmethod
    async def open(
        name: str,
        *,
        ledgers: LedgerStore,
        metadata: RecordStore,
        ids: LedgerAllocator,
        clock: Clock,
        settings: TopicLogSettings | None = None,
        create: bool = True,
        ownership_epoch: int | None = None,
        create_with: Mapping[str, str] | None = None,
        is_first: bool = False,
    ) -> TopicLog:
        """Open the topic `name` (its encoded metadata key) as its owner.

        NotFound if it does not exist and `create` is False.

        Superseded if a broker with a later `ownership_epoch` has opened it. `create_with`: properties of a topic that
        is created. `is_first`: create without reading first; AlreadyExists if there is a record of that name, even a
        tombstone.
        """
        opened = await open_topic(
            name,
            ledgers=ledgers,
            metadata=metadata,
            ids=ids,
            clock=clock,
            create=create,
            ownership_epoch=ownership_epoch,
            create_with=create_with,
            is_first=is_first,
        )
        topic = TopicLog(
            opened, ledgers=ledgers, metadata=metadata, ids=ids, clock=clock, settings=settings or TopicLogSettings()
        )
        topic._state.restore(await opened.replay(ledgers, topic._state.cursor_of))
        if opened.data_ledger is None:
            await topic._appender.stop(TopicTerminated(f"{name} is terminated"))
        else:
            topic._start_appender(opened.data_ledger)
        if topic._garbage:
            topic._garbage.discard([])
        return topic

    def _start_appender(self, ledger: int) -> None:
        try:
            self._appender.start(ledger)
        except StorageError as error:
            log.warning(
                "topic opened read-only: storage refuses appends", extra={"topic": self.name, "reason": str(error)}
            )

    def _check_usable(self) -> None:
        self._owner.check()
        if self._is_closed:
            raise StorageError(f"{self.name} is closed")

    def _skip_damaged(self, p: Position) -> None:
        self._state.skip_damaged(p)

    # properties

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return self._state.cursors

    @property
    def settings(self) -> TopicLogSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: TopicLogSettings) -> None:
        """New retention applies from the next `trim`, new sizes from the next append."""
        self._settings = settings
        self._appender.set_ledger_bytes_max(settings.ledger_bytes_max)
        self._state_log.flush_ms = settings.cursor_flush_ms

    @property
    def is_terminated(self) -> bool:
        return self._owner.record.terminated_at is not None

    @property
    def epoch(self) -> int:
        return self._owner.record.epoch

    @property
    def origin(self) -> int:
        """Differs between a deleted topic and one created again with the same name; 0 for topics of early versions."""
        return self._owner.record.origin

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._owner.record.properties)

    @property
    def last_position(self) -> Position:
        """Last durable entry; EARLIEST if the topic never had one."""
        return self.chain.last

    @property
    def first_position(self) -> Position:
        """First retained entry, or the slot of the next append."""
        return self.chain.first()

    @property
    def total_messages(self) -> int:
        return self.chain.messages

    @property
    def total_bytes(self) -> int:
        return self.chain.bytes

    def after(self, p: Position) -> Position:
        """The next valid slot after p."""
        return self.chain.after(p)

    # appending and reading

    def append(self, payload: Payload, messages: int, sink: TopicSink, context: Any) -> None:
        """Queue one entry. The sink is notified in append order when the entry is durable or has failed."""
        self._appender.append(payload, messages, sink, context)

    def append_run(
        self, payloads: Sequence[Payload], messages: Sequence[int], sink: TopicSink, contexts: Sequence[Any]
    ) -> None:
        """`append` of several consecutive entries."""
        self._appender.append_run(payloads, messages, sink, contexts)

    def read_cached(
        self, start: Position, entries_max: int, bytes_max: int, upto: Position
    ) -> list[StoredEntry] | None:
        return self._reader.read_cached(start, entries_max, bytes_max, upto)

    def read_resident(
        self, start: Position, entries_max: int, bytes_max: int, upto: Position
    ) -> list[StoredEntry] | None:
        return self._reader.read_resident(start, entries_max, bytes_max, upto)

    async def read(self, start: Position, entries_max: int, bytes_max: int, upto: Position) -> list[StoredEntry]:
        return await self._reader.read(start, entries_max, bytes_max, upto)

    async def position_at_time(self, publish_ms: int) -> Position:
        return await self._reader.position_at_time(publish_ms)

    async def messages_upto(self, p: Position) -> int:
        return await self._reader.messages_upto(p)

    async def messages_between(self, after: Position, upto: Position) -> int:
        """Messages of the entries after < position <= upto."""
        return max(await self.messages_upto(upto) - await self.messages_upto(after), 0)

    @property
    def compacted(self) -> CompactedView | None:
        return self.compacting.view

    # lifecycle

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        await self._save(lambda record: replace(record, properties=dict(properties)))

    async def terminate(self, properties: Callable[[], Mapping[str, str]] | None = None) -> Position:
        """Accept no more messages, permanently; returns the last position. Safe to repeat.

        `properties` is called when the last position is known; its result is written in the same record.
        """
        self._check_usable()
        if not self.is_terminated:
            await self._appender.stop(TopicTerminated(f"{self.name} is terminated"))
            added = {} if properties is None else dict(properties())
            try:
                await self._save(
                    lambda record: replace(
                        record, terminated_at=self.last_position, properties={**record.properties, **added}
                    )
                )
            except Error:
                self._appender.resume()
                raise
        return self.last_position

    async def roll(self) -> None:
        """Switch to a new ledger, unless the open one is empty."""
        await self._appender.roll()

    async def trim(self) -> int:
        """Drop the ledgers that all durable cursors have passed and retention no longer keeps; returns how many."""
        self._check_usable()
        tail = self.chain.tail
        if tail is not None and tail.entries and not self.is_terminated:
            if self._clock.now_ms() - self._appender.opened_at_ms >= self._settings.ledger_age_max_ms:
                await self.roll()
        async with self._trim_lock:
            return await self._drop_ledgers()

    def resting_seconds(self) -> float:
        """After a `trim`: seconds until another one can do something, if there are no appends, reads or
        acknowledgements.
        """
        if self._garbage:
            return 0.0
        due = next_drop_ms(list(self.chain), slowest=self._slowest(), retention_ms=self._settings.retention_ms)
        tail = self.chain.tail
        if tail is not None and tail.entries and not self.is_terminated:
            due = min(due, self._appender.opened_at_ms + self._settings.ledger_age_max_ms)
        return max(due - self._clock.now_ms(), 0.0) / 1000

    def _slowest(self) -> Position | None:
        """Everything after this position is retained; None if nothing is needed."""
        needed = [cursor.mark_delete for cursor in self._cursors.values() if cursor.durable]
        if self.held_behind is not None:
            needed.append(self.held_behind)
        return min(needed, default=None)

    async def _drop_ledgers(self) -> int:
        count = self._take_ledgers_to_drop()
        if self._garbage:
            await self._save()
            await self._garbage.delete()
        return count

    def _take_ledgers_to_drop(self) -> int:
        """Move ledgers past retention from the chain to the garbage; returns how many."""
        count = ledgers_to_drop(
            list(self.chain),
            slowest=self._slowest(),
            now_ms=self._clock.now_ms(),
            retention_ms=self._settings.retention_ms,
            retention_bytes=self._settings.retention_bytes,
        )
        if count:
            dropped = self.chain.drop_head(count)
            self._garbage.add(*(info.id for info in dropped))
            for cursor in self._cursors.values():
                if not cursor.durable:
                    cursor.trimmed(dropped[-1].end)
            log.info(
                "dropped ledgers past retention", extra={"topic": self.name, "ledgers": [info.id for info in dropped]}
            )
        return count

    async def close(self) -> None:
        """Write pending cursor changes and seal the open ledger. Safe to repeat.

        Many ledgers past retention are dropped: a topic that is unloaded more often than swept would collect them.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._appender.stop(StorageError("the topic is closed"))
            if self._owner.fenced is None:
                await self._state_log.close()
                rows = self._owner.record.ledgers
                is_unsealed = bool(rows and rows[-1].entries is None and self.chain.entries)
                has_many = len(self.chain) > CLOSED_LEDGERS_MAX
                if (has_many and self._take_ledgers_to_drop()) or is_unsealed:
                    await self._save()
                    await self._garbage.delete()
        finally:
            await self._close_parts()
            self._evict_ledgers()

    async def _close_parts(self) -> None:
        await self._state_log.close(flush=False)
        await self._tasks.close()
        self._cursors.clear()  # a cursor refers to the topic's state, which has the cursors

    def _evict_ledgers(self) -> None:
        view = () if self.compacted is None else (self.compacted.row.ledger,)
        for ledger in (*(info.id for info in self.chain), *self._garbage.listed, *self._state_log.ledger_ids, *view):
            self._ledgers.evict(ledger)

    async def delete(self, tombstone: Mapping[str, str] | None = None) -> None:
        """Delete the topic. Point of no return: the record is marked as deleted; the next `open` finishes the rest if
        needed.

        With `tombstone` the record stays, with these properties.
        """
        self._check_usable()
        self._is_closed = True
        await self._appender.stop(StorageError(f"{self.name} is deleted"))
        await self._close_parts()

        def deleted(record: TopicRecord) -> TopicRecord:
            if tombstone is None:
                return replace(record, is_deleted=True)
            return replace(record, is_deleted=True, leaves_tombstone=True, properties=dict(tombstone))

        await self._save(deleted)
        await finish_deletion(self._key, self._owner.record, self._owner.version, self._ledgers, self._metadata)

    def stats(self) -> TopicLogStats:
        return TopicLogStats(
            ledgers=tuple(
                LedgerStats(info.id, info.entries, info.messages, info.bytes, info.sealed) for info in self.chain
            ),
            cursors=tuple(
                CursorStats(cursor.name, cursor.durable, cursor.mark_delete, cursor.backlog_entries, cursor.state.holes)
                for cursor in self._cursors.values()
            ),
            state_ledgers=self._state_log.ledger_ids,
            entries=self.chain.entries,
            messages=self.chain.messages,
            bytes=self.chain.bytes,
            trimmed_messages=self.chain.trimmed_messages,
            corrupt_entries=self._reader.corrupt_entries,
            last_position=self.chain.last,
            created_ms=self._owner.record.created_ms,
            is_terminated=self.is_terminated,
        )

    # the topic record

    async def _announce_ledger(self) -> int:
        highest = max((row.id for row in self._owner.record.ledgers), default=self.chain.last.ledger)
        ledger = await self._next_data.allocate(above=highest)
        await self._save(next_ledger=ledger)
        self._next_data.announced()
        return ledger

    async def _replace_state_ledger(self) -> int:
        ledger = self._next_state_ledger = await self._next_state.allocate()
        try:
            await self._save()
        finally:
            self._next_state_ledger = None
        self._next_state.announced()
        return ledger

    def _after_switch(self) -> None:
        self._tasks.spawn(self._save_and_trim(), "trim")

    async def _save_and_trim(self) -> None:
        try:
            if not await self.trim():
                await self._save()
        except Error as error:
            log.warning(
                "topic record not written; the next trim tries again", extra={"topic": self.name, "reason": str(error)}
            )

    async def _save(
        self, change: Callable[[TopicRecord], TopicRecord] | None = None, *, next_ledger: int | None = None
    ) -> None:
        """Write the record as it is in memory, with `change` applied."""

        def current(record: TopicRecord) -> TopicRecord:
            state_ledgers = self._state_log.ledger_ids
            if self._next_state_ledger is not None:
                state_ledgers = (*state_ledgers, self._next_state_ledger)
            record = with_chain(record, self.chain, next_ledger=next_ledger or self._appender.announced)
            record = replace(record, state_ledgers=state_ledgers, garbage=self._garbage.listed)
            return record if change is None else change(record)

        await self._owner.save(current)
        self._garbage.saved(self._owner.record.garbage)

    def _lost(self, fenced: Fenced) -> None:
        """Another broker owns the topic: confirm nothing any more."""
        self._appender.abandon(fenced)
