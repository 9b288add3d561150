"""The state log of one topic: cursors and named blobs, written as deltas and occasional snapshots.

Nothing is written while nothing changes. A change starts a timer. When it fires, or when a caller waits in `flush`, the
deltas of all changed cursors are appended to the state ledger as one entry. They share the group commit of all topics.

| file state | result of a replay |
|---|---|
| snapshot begun, not committed | content of the ledgers before it |
| snapshot committed | the snapshot, then the deltas after it |

Memory is authoritative: after a failed write the next one is a snapshot in a new ledger. A new ledger needs the
metadata store; while that is unavailable, deltas continue in the current ledger as long as it is sound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_codec import (
    BlobSaved,
    CursorDeleted,
    SnapshotBegins,
    SnapshotCommitted,
    StateRecord,
    encode,
)
from anabranch.storage.interface import LedgerStore, LedgerWriter, StorageError, StoredEntry

log = get_logger(__name__)

_RETRY_MS = 1000


class _Postponed(Exception):
    """No new ledger can be allocated for a snapshot now; the current one can take more deltas."""


_Waiters = list[asyncio.Future[None]]


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
        retire: Callable[[list[int]], None],
    ) -> None:
        """`ledger_id` is new and already in the topic record; `replace` adds another new one to the record.

        `retire` gets the ledgers that a replay no longer needs.

        A snapshot is written when the deltas exceed both `delta_bytes_max` and four times the last snapshot.
        """
        self._delta_bytes_max = delta_bytes_max
        self._entry_bytes_max = 4 * delta_bytes_max  # a snapshot is divided into entries of about this size
        self._ledgers, self._clock, self._tasks, self.flush_ms = ledgers, clock, tasks, flush_ms
        self._replace, self._retire = replace, retire
        self.cursors = cursors
        self.blobs = blobs
        self._ledger_id = ledger_id
        self._confirmed = list(confirmed)  # ledgers that a replay needs
        self._writer: LedgerWriter | None = None
        self._is_fresh = True  # nothing has been written to the current ledger
        self._needs_snapshot = True
        self._has_lost_changes = False  # a write failed, so only a snapshot can hold its changes
        self._delta_bytes = self._snapshot_bytes = 0
        self._postponed_to = 0  # bytes of deltas before the next attempt of a snapshot
        self._dirty: dict[str, Cursor] = {}
        self._pending: list[StateRecord] = []
        self._blob_changes: dict[str, BlobSaved] = {}
        self._waiters: _Waiters = []
        self._is_running = False
        self._timer: Timer | None = None
        self._is_closed = False

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """The ledgers that the topic record must list, in replay order."""
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
        """Add a record other than acknowledgements; it is written with the next flush, before the deltas."""
        if isinstance(record, CursorDeleted):
            self._dirty.pop(record.name, None)
        if isinstance(record, BlobSaved):
            self._blob_changes[record.key] = record
        else:
            self._pending.append(record)
        self._arm(self.flush_ms)

    async def flush(self) -> None:
        """Wait until every change made before this call is durable; raises if that failed."""
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
        """Write now: deltas directly, because there may be thousands of topics; a snapshot in a task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_running:
            return
        self._is_running = True
        waiters, self._waiters = self._waiters, []
        if self._is_closed:
            self._finish(waiters, StorageError("the topic is closed"))
            return
        enough = max(self._delta_bytes_max, 4 * self._snapshot_bytes, self._postponed_to)
        if not self._needs_snapshot and self._delta_bytes <= enough:
            self._write_delta(waiters)
        elif self._tasks.spawn(self._run_snapshot(waiters), "state") is None:
            self._finish(waiters, StorageError("the topic is closed"))

    def _write_delta(self, waiters: _Waiters) -> None:
        records, self._pending = self._pending, []
        records.extend(self._blob_changes.values())
        self._blob_changes = {}
        dirty, self._dirty = self._dirty, {}
        for cursor in dirty.values():
            records.extend(cursor.take_changes())
        if not records:
            self._finish(waiters, None)
            return
        assert self._writer is not None, "a snapshot comes first"
        payload = encode(records)
        self._delta_bytes += len(payload)
        try:
            self._writer.append(payload, 0, self, partial(self._finish, waiters))
        except StorageError as error:
            self._finish(waiters, error)

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        """The context of an append is the future that waits for its outcome, or None."""
        for context in contexts:
            if context is not None:
                context(None)

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        if context is not None:
            context(error)

    async def _run_snapshot(self, waiters: _Waiters) -> None:
        error: Error | None = StorageError("the topic was closed while its state was being written")
        try:
            await self._write_snapshot()
            error = None
        except _Postponed as postponed:
            log.warning(
                "no new state ledger; cursor changes continue in the current one",
                extra={"ledger": self._ledger_id, "reason": str(postponed)},
            )
            self._postponed_to = self._delta_bytes + self._delta_bytes_max
            self._write_delta(waiters)
            return
        except Error as raised:
            error = raised
        except BaseException:
            self._finish(waiters, error)
            raise
        self._finish(waiters, error)

    def _finish(self, waiters: _Waiters, error: Error | None) -> None:
        """One write has ended; start the next one if there are new changes."""
        self._is_running = False
        if error is not None:
            log.warning(
                "cursor state not written; acknowledgements may be lost by a crash",
                extra={"ledger": self._ledger_id, "reason": str(error)},
            )
            self._needs_snapshot = self._has_lost_changes = True
            waiters = [*waiters, *self._waiters]
            self._waiters = []
        for waiter in waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        if self._waiters:
            self._kick()
        elif self.is_dirty:
            self._arm(self.flush_ms if error is None else _RETRY_MS)

    async def _write_snapshot(self) -> None:
        if not self._is_fresh:
            fresh = await self._fresh_ledger()
            self._needs_snapshot = True
            await self._give_up_writer()
            self._ledger_id = fresh
            self._is_fresh = True
        self._needs_snapshot = True
        self._pending, self._blob_changes, self._dirty = [], {}, {}
        payloads = self._snapshot()
        await self._append(payloads)
        self._needs_snapshot = self._has_lost_changes = False
        self._snapshot_bytes, self._delta_bytes, self._postponed_to = sum(map(len, payloads)), 0, 0
        outdated = [ledger for ledger in self._confirmed if ledger != self._ledger_id]
        self._confirmed = [self._ledger_id]
        if outdated:
            self._retire(outdated)

    async def _fresh_ledger(self) -> int:
        try:
            return await self._replace()
        except StorageError:
            raise  # an error of storage itself: the current ledger is no better
        except Error as error:
            if self._needs_snapshot or self._writer is None:
                raise
            raise _Postponed(error.reason) from error

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
        """Append all payloads in order.

        A failed append fails those after it, so the outcome of the last one counts for all.
        """
        if self._writer is None:
            self._writer = self._ledgers.create(self._ledger_id)
        writer = self._writer
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            for payload in payloads[:-1]:
                writer.append(payload, 0, self, None)
            writer.append(payloads[-1], 0, self, partial(_resolve, done))
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
    """Joins encodings of single records; the format byte is written once."""
    return encoded[0] + b"".join(one[1:] for one in encoded[1:])


def _resolve(done: asyncio.Future[None], error: StorageError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
