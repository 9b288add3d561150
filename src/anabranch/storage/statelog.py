"""The state ledger of one topic: cursors and named blobs, written as deltas, from time to time as a whole.

Nothing is written while nothing changes. A change arms a timer; when it fires (or somebody waits in `flush`) the
deltas of all dirty cursors go to the state ledger as one entry, so their durability is paid with the group commit all
topics share.

| file state | what a replay sees |
|---|---|
| snapshot begun, not committed | what the ledgers before it said |
| snapshot committed | the snapshot, then the deltas after it |

Memory is the truth: after a failed write the next one is a whole snapshot in a fresh ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor import Cursor
from anabranch.storage.cursorcodec import (
    BlobSaved,
    CursorDeleted,
    CursorDelta,
    CursorProperties,
    CursorSaved,
    SnapshotBegins,
    SnapshotCommitted,
    StateRecord,
    encode,
)
from anabranch.storage.port import Append, LedgerStore, LedgerWriter, StorageError

log = logging.getLogger(__name__)

_RETRY_MS = 1000


class Replay:
    """Folds state records into cursors and blobs. A snapshot counts only once its commit was seen.

    Every state ledger begins with a snapshot, so one that was never committed is void when the next ledger begins.
    """

    def __init__(self, make_cursor: Callable[[CursorSaved], Cursor]) -> None:
        self._make_cursor = make_cursor
        self.cursors: dict[str, Cursor] = {}
        self.blobs: dict[str, bytes] = {}
        self._snapshot: list[StateRecord] | None = None

    def feed(self, records: Iterable[StateRecord]) -> None:
        for record in records:
            if isinstance(record, SnapshotBegins):
                self._snapshot = []
            elif isinstance(record, SnapshotCommitted):
                if self._snapshot is not None:
                    self.cursors, self.blobs = {}, {}
                    snapshot, self._snapshot = self._snapshot, None
                    for saved in snapshot:
                        self._apply(saved)
            elif self._snapshot is not None:
                self._snapshot.append(record)
            else:
                self._apply(record)

    def _apply(self, record: StateRecord) -> None:
        match record:
            case CursorSaved():
                self.cursors[record.name] = self._make_cursor(record)
            case CursorDelta():
                if (cursor := self.cursors.get(record.name)) is not None:
                    cursor.apply(record)
            case CursorProperties():
                if (cursor := self.cursors.get(record.name)) is not None:
                    cursor.apply_properties(record.properties)
            case CursorDeleted():
                self.cursors.pop(record.name, None)
            case BlobSaved():
                self.blobs[record.key] = record.value
            case _:
                raise AssertionError(f"{record} is handled by feed")


class StateLog:
    def __init__(
        self,
        *,
        ledgers: LedgerStore,
        clock: Clock,
        tasks: TaskOwner,
        flush_ms: int,
        delta_bytes_max: int,
        ledger_id: int,
        confirmed: tuple[int, ...],
        cursors: dict[str, Cursor],
        blobs: dict[str, bytes],
        replace: Callable[[], Awaitable[int]],
    ) -> None:
        """`ledger_id` is fresh and already in the topic record; `replace` puts another fresh one there.

        The state is written as a whole when its deltas exceed `delta_bytes_max` and four times the last snapshot.
        """
        self._delta_bytes_max = delta_bytes_max
        self._entry_bytes_max = 4 * delta_bytes_max  # a snapshot is cut into entries of about this size
        self._ledgers, self._clock, self._tasks, self.flush_ms = ledgers, clock, tasks, flush_ms
        self._replace = replace
        self.cursors = cursors
        self.blobs = blobs
        self._ledger_id = ledger_id
        self._confirmed = list(confirmed)  # ledgers whose state a replay needs
        self._writer: LedgerWriter | None = None
        self._is_fresh = True  # nothing was written to the present ledger
        self._needs_snapshot = True
        self._has_lost_changes = False  # a write failed: only a snapshot holds what it said
        self._delta_bytes = self._snapshot_bytes = 0
        self._dirty: dict[str, Cursor] = {}
        self._pending: list[StateRecord] = []
        self._blob_changes: dict[str, BlobSaved] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._is_running = False
        self._timer: Timer | None = None
        self._is_closed = False

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """What the topic record must list, in replay order."""
        if self._confirmed and self._confirmed[-1] == self._ledger_id:
            return tuple(self._confirmed)
        return (*self._confirmed, self._ledger_id)

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty or self._pending or self._blob_changes or self._has_lost_changes)

    def cursor_changed(self, cursor: Cursor) -> None:
        if self.cursors.get(cursor.name) is cursor:
            self._dirty[cursor.name] = cursor
            self._arm(self.flush_ms)

    def add(self, record: StateRecord) -> None:
        """Something besides acknowledgements changed; written with the next flush, before the deltas."""
        if isinstance(record, CursorDeleted):
            self._dirty.pop(record.name, None)
        if isinstance(record, BlobSaved):
            self._blob_changes[record.key] = record
        else:
            self._pending.append(record)
        self._arm(self.flush_ms)

    async def flush(self) -> None:
        """Return when every change made before this call is durable; raise when it could not be made so."""
        if not self._is_running and not self.is_dirty:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._kick()
        await waiter

    async def close(self, *, flush: bool = True) -> None:
        try:
            if flush:
                await self.flush()
        finally:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._give_up_writer()

    def _arm(self, delay_ms: int) -> None:
        if self._timer is None and not self._is_running and not self._is_closed:
            self._timer = self._clock.call_later(delay_ms / 1000, self._kick)

    def _kick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_running:
            return
        self._is_running = True
        if self._tasks.spawn(self._run(), "state") is None:
            self._is_running = False
            self._answer(self._waiters, StorageError("the topic is closed"))

    async def _run(self) -> None:
        retry_ms = self.flush_ms
        waiters: list[asyncio.Future[None]] = []
        try:
            while True:
                waiters, self._waiters = self._waiters, []
                try:
                    await self._write()
                except Error as error:
                    self._needs_snapshot, self._has_lost_changes, retry_ms = True, True, _RETRY_MS
                    log.warning("state of a topic not written", extra={"ledger": self._ledger_id, "reason": str(error)})
                    self._answer(waiters, error)
                    self._answer(self._waiters, error)
                    break
                self._answer(waiters, None)
                if not self._waiters:
                    break
        finally:
            self._is_running = False
            self._answer(waiters, StorageError("the topic was closed while its state was being written"))
            self._answer(self._waiters, StorageError("the topic was closed while its state was being written"))
        if self.is_dirty:
            self._arm(retry_ms)

    def _answer(self, waiters: list[asyncio.Future[None]], error: Error | None) -> None:
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        waiters.clear()

    async def _write(self) -> None:
        if self._needs_snapshot or self._delta_bytes > max(self._delta_bytes_max, 4 * self._snapshot_bytes):
            await self._write_snapshot()
            return
        records, self._pending = self._pending, []
        records.extend(self._blob_changes.values())
        self._blob_changes = {}
        dirty, self._dirty = self._dirty, {}
        for cursor in dirty.values():
            records.extend(cursor.take_changes())
        if records:
            payload = encode(records)
            self._delta_bytes += len(payload)
            await self._append([payload])

    async def _write_snapshot(self) -> None:
        self._needs_snapshot = True
        if not self._is_fresh:
            await self._give_up_writer()
            self._ledger_id = await self._replace()
            self._is_fresh = True
        self._pending, self._blob_changes, self._dirty = [], {}, {}
        payloads = self._snapshot()
        await self._append(payloads)
        self._needs_snapshot = self._has_lost_changes = False
        self._snapshot_bytes, self._delta_bytes = sum(map(len, payloads)), 0
        outdated = [ledger for ledger in self._confirmed if ledger != self._ledger_id]
        self._confirmed = [self._ledger_id]
        for ledger in outdated:
            await self._ledgers.delete(ledger)

    def _snapshot(self) -> list[bytes]:
        payloads: list[bytes] = []
        part: list[bytes] = []
        records: list[StateRecord] = [SnapshotBegins()]
        for cursor in self.cursors.values():
            if cursor.durable:
                cursor.forget_changes()
                records.append(cursor.saved())
        records.extend(BlobSaved(key, value) for key, value in self.blobs.items())
        records.append(SnapshotCommitted())
        size = 0
        for record in records:
            encoded = encode((record,))
            if size and size + len(encoded) > self._entry_bytes_max:
                payloads.append(_joined(part))
                part, size = [], 0
            part.append(encoded)
            size += len(encoded)
        payloads.append(_joined(part))
        return payloads

    async def _append(self, payloads: list[bytes]) -> None:
        """All payloads in order; one failed append fails the ones after it, so the last one speaks for all."""
        if self._writer is None:
            self._writer = self._ledgers.create(self._ledger_id)
        writer = self._writer
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            for payload in payloads[:-1]:
                writer.append(payload, 0, _CONFIRM, None)
            writer.append(payloads[-1], 0, _CONFIRM, done)
        finally:
            self._is_fresh = writer.next_entry_id == 0
        await done
        if self._ledger_id not in self._confirmed:
            self._confirmed.append(self._ledger_id)

    async def _give_up_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.seal()
            except StorageError as error:
                log.warning("state ledger not sealed", extra={"ledger": writer.ledger_id, "reason": str(error)})


def _joined(encoded: list[bytes]) -> bytes:
    """Several one-record encodings as one: the format byte stands once."""
    return encoded[0] + b"".join(one[1:] for one in encoded[1:])


class _Confirm:
    """Turns the answer to an append into the result of the future that travels with it."""

    def appended(self, append: Append) -> None:
        done: asyncio.Future[None] | None = append.context
        if done is not None and not done.done():
            done.set_result(None)

    def append_failed(self, append: Append, error: StorageError) -> None:
        done: asyncio.Future[None] | None = append.context
        if done is not None and not done.done():
            done.set_exception(error)


_CONFIRM = _Confirm()
