"""Shell of `writer_state`: the `LedgerWriter` of one ledger on bookies.

Entries are confirmed by the state machine, then *delivered* to their sinks together with those of other ledgers, when
the broker's session is valid: see `delivery`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from anabranch.model.position import Position
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.bookkeeper import packets
from anabranch.storage.bookkeeper.bookie_connection import code_text
from anabranch.storage.bookkeeper.bookies import Bookies
from anabranch.storage.bookkeeper.entry_head import ENTRY_HEAD_BYTES, EntryHead, with_head
from anabranch.storage.bookkeeper.errors import EntryTooLarge, LedgerFenced, LedgerNodesUnavailable
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata
from anabranch.storage.bookkeeper.ledger_nodes import LedgerNodes, LedgerRaced
from anabranch.storage.bookkeeper.packets import Code, Flag
from anabranch.storage.bookkeeper.writer_state import (
    Closed,
    CloseFailed,
    Confirm,
    FailAppends,
    LedgerWriterState,
    SaveLedger,
    SendAdd,
    WriterEffect,
)
from anabranch.storage.interface import AppendSink, LedgerSummary, Payload, StorageError, StoredEntry

log = get_logger(__name__)

PAYLOAD_BYTES_MAX = packets.PAYLOAD_BYTES_MAX - ENTRY_HEAD_BYTES
SAVE_AGAIN_S = 0.2
SEAL_S = 30.0


class WriterHost(Protocol):
    """What the store does for its writers."""

    def is_deliverable(self, writer: BookKeeperWriter) -> None:
        """Some entries of this writer were confirmed or have failed."""

    def spares(self, writer: BookKeeperWriter) -> list[str]:
        """Bookies that can be written, best first."""

    def bookie_failed(self, bookie: str, reason: str) -> None: ...

    def delivered(self, writer: BookKeeperWriter, entries: Sequence[StoredEntry]) -> None:
        """These entries are readable now."""


class _Append:
    __slots__ = ("context", "entry", "head", "sink")

    def __init__(self, entry: StoredEntry, head: EntryHead, sink: AppendSink, context: Any) -> None:
        self.entry, self.head, self.sink, self.context = entry, head, sink, context


class BookKeeperWriter:
    """Implements `LedgerWriter`."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        *,
        nodes: LedgerNodes,
        bookies: Bookies,
        clock: Clock,
        host: WriterHost,
        publish_time_of: Callable[[Payload], int],
    ) -> None:
        self.ledger_id = ledger_id
        self.next_entry_id = 0
        self.durable_entry_id = -1
        self.durable_bytes = self.durable_messages = 0
        self.bytes = self.messages = 0
        self.is_sealed = False
        self.is_finished = False  # sealed, or given up to a later owner
        self.cache: dict[int, StoredEntry] = {}
        self.cache_first = 0
        self.cached_chunks = self.cached_bytes = 0
        self._state = LedgerWriterState(ledger_id, metadata, version)
        self._key = packets.master_key(metadata.password)
        self._nodes, self._bookies, self._clock, self._host = nodes, bookies, clock, host
        self._publish_time_of = publish_time_of
        self._publish_ms_max = self._durable_publish_ms = 0
        self._appends: deque[_Append] = deque()  # not delivered yet, in order
        self._confirmed = -1
        self._failure: StorageError | None = None
        self._tasks = TaskOwner(f"ledger {ledger_id}")
        self._waiters: list[asyncio.Future[None]] = []
        self._is_abandoned = False
        self._closed: asyncio.Future[None] | None = None

    # the port

    def append(self, payload: Payload, messages: int, sink: AppendSink, context: Any) -> int:
        return self.append_run((payload,), (messages,), sink, (context,))

    def append_run(
        self, payloads: Sequence[Payload], messages: Sequence[int], sink: AppendSink, contexts: Sequence[Any]
    ) -> int:
        if self._failure is not None and self._is_abandoned:
            raise _again(self._failure)
        assert not self.is_sealed, "append to a sealed ledger"
        for payload in payloads:
            if len(payload) > PAYLOAD_BYTES_MAX:
                raise EntryTooLarge(
                    f"an entry of {len(payload):,} bytes is above the limit of bookies, {PAYLOAD_BYTES_MAX:,} bytes"
                )
        first = self.next_entry_id
        for payload, count, context in zip(payloads, messages, contexts, strict=True):
            self._publish_ms_max = max(self._publish_ms_max, self._publish_time_of(payload))
            head = EntryHead(count, self.messages, self._publish_ms_max)
            entry = StoredEntry(Position(self.ledger_id, self.next_entry_id), count, payload)
            self._appends.append(_Append(entry, head, sink, context))
            self.next_entry_id += 1
            self.bytes += len(payload)
            self.messages += count
            if self._failure is None:
                self._apply(self._state.append(with_head(head, payload)))
        if self._failure is not None:
            self._host.is_deliverable(self)  # only this ledger has ended: the owner learns it, and opens another one
        return first

    async def seal(self) -> LedgerSummary:
        """Raises LedgerFenced if another process closes the ledger: it may end later than this summary would say."""
        self.is_sealed = True
        try:
            async with asyncio.timeout(SEAL_S):
                if self._appends:
                    await self._wait_delivered()
                if self._is_abandoned and self._failure is not None:
                    raise _again(self._failure)  # a later owner closes the ledger
                self._closed = self._closed or self._close()
                await asyncio.shield(self._closed)
        except TimeoutError:
            raise LedgerNodesUnavailable(f"ledger {self.ledger_id} was not closed within {SEAL_S:g} s") from None
        finally:
            self.is_finished = True
            await self._tasks.close()
        return self.summary()

    def summary(self) -> LedgerSummary:
        return LedgerSummary(
            ledger_id=self.ledger_id,
            entries=self.durable_entry_id + 1,
            messages=self.durable_messages,
            bytes=self.durable_bytes,
            file_bytes=0,
            last_publish_ms=self._durable_publish_ms,
        )

    # the store

    @property
    def metadata(self) -> LedgerMetadata:
        return self._state.metadata

    @property
    def written_entry_id(self) -> int:
        """Everything that was delivered can be read from bookies, so the cache may drop it."""
        return self.durable_entry_id

    @property
    def is_under_replicated(self) -> bool:
        return bool(self._state.failed_bookies)

    @property
    def failed_bookies(self) -> frozenset[str]:
        return self._state.failed_bookies

    @property
    def ensemble(self) -> tuple[str, ...]:
        return self._state.ensemble

    def bookies_changed(self) -> None:
        self._apply(self._state.bookies_changed(self._host.spares(self)))

    def bookie_restored(self, bookie: str) -> None:
        self._apply(self._state.bookie_restored(bookie))

    def fail(self, error: StorageError) -> None:
        """Nothing may be confirmed any more, because the broker's session has ended or the store closes."""
        if self._failure is None:
            self._failure, self._is_abandoned = error, True
            self._confirmed = self.durable_entry_id
            self._tasks.cancel()
            self._host.is_deliverable(self)

    def deliver(self) -> None:
        """Notify the sinks of what was confirmed, then of what has failed."""
        count = self._confirmed - self.durable_entry_id
        if count > 0:
            self._deliver_confirmed([self._appends.popleft() for _ in range(count)])
        if self._failure is not None:
            failed, self._appends = self._appends, deque()
            for one in failed:
                _notify(self.ledger_id, one.sink.append_failed, one.entry, one.context, self._failure)
        if not self._appends:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def evict(self, upto: int) -> None:
        """Drop cached entries up to this one."""
        for entry_id in range(self.cache_first, upto + 1):
            del self.cache[entry_id]
        self.cache_first = upto + 1

    # answers of bookies

    def on_add(self, bookie: str, entry: int, code: int) -> None:
        if code == Code.OK:
            self._apply(self._state.added(bookie, entry))
        elif code in (Code.FENCED, Code.UNAUTHORIZED):
            self._apply(self._state.fenced(f"bookie {bookie} answered {code_text(code)}"))
        elif bookie in self._state.ensemble and bookie not in self._state.failed_bookies:
            self._host.bookie_failed(bookie, code_text(code))
            spares = [one for one in self._host.spares(self) if one != bookie]
            self._apply(self._state.bookie_failed(bookie, code_text(code), spares))

    # inside

    def _apply(self, effects: Iterable[WriterEffect]) -> None:
        for effect in effects:
            match effect:
                case SendAdd(bookie, entry, head, payload):
                    self._bookies.add(bookie, self.ledger_id, entry, self._key, head, payload, Flag.NONE, self)
                case Confirm(last):
                    if self._failure is None:
                        self._confirmed = last
                        self._host.is_deliverable(self)
                case FailAppends(_, error):
                    self._failed(error)
                case SaveLedger():
                    self._tasks.spawn(self._save(effect), "save")
                case Closed():
                    self._resolve(None)
                case CloseFailed(error):
                    self._resolve(error)
        if self._state.failure is not None and self._failure is None:
            self._failed(self._state.failure)  # nothing was pending

    def _failed(self, error: StorageError) -> None:
        if self._failure is None:
            self._failure = error
            log.warning("ledger takes no more entries", extra={"ledger": self.ledger_id, "reason": str(error)})
            self._host.is_deliverable(self)

    def _close(self) -> asyncio.Future[None]:
        self._closed = asyncio.get_running_loop().create_future()
        self._apply(self._state.close())
        return self._closed

    def _resolve(self, error: StorageError | None) -> None:
        if self._closed is None or self._closed.done():
            return
        if error is None:
            self._closed.set_result(None)
        else:
            self._closed.set_exception(LedgerFenced(error.reason))
            self._closed.exception()  # perhaps no caller waits for it

    async def _wait_delivered(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _save(self, wanted: SaveLedger) -> None:
        try:
            version = await self._nodes.save(self.ledger_id, wanted.metadata, wanted.expected_version)
        except LedgerRaced:
            await self._look_again()
        except LedgerNodesUnavailable as error:
            log.warning(
                "ledger metadata not written; confirmations wait",
                extra={"ledger": self.ledger_id, "reason": str(error)},
            )
            await self._look_again()
        else:
            if self._state.is_waiting:
                self._apply(self._state.saved(version))

    async def _look_again(self) -> None:
        """The write lost, or may have been applied: what is stored decides."""
        while self._state.is_waiting:
            try:
                found = await self._nodes.load(self.ledger_id)
            except LedgerNodesUnavailable:
                await self._clock.sleep(SAVE_AGAIN_S)
                continue
            if self._state.is_waiting:
                self._apply(self._state.stored(*(found[:2] if found else (None, -1))))
            return

    def _deliver_confirmed(self, appends: list[_Append]) -> None:
        last = appends[-1]
        self.durable_entry_id = last.entry.position.entry
        self.durable_messages = last.head.messages_upto
        self.durable_bytes += sum(len(one.entry.payload) for one in appends)
        self._durable_publish_ms = last.head.publish_ms_max
        entries = [one.entry for one in appends]
        self.cache.update((entry.position.entry, entry) for entry in entries)
        self._host.delivered(self, entries)
        start = 0
        for at in range(1, len(appends) + 1):
            if at == len(appends) or appends[at].sink is not appends[start].sink:
                contexts = [one.context for one in appends[start:at]]
                _notify(self.ledger_id, appends[start].sink.appended, entries[start:at], contexts)
                start = at


def _notify(ledger: int, call: Callable[..., None], *arguments: Any) -> None:
    """The error of one sink must not keep the others from being notified."""
    try:
        call(*arguments)
    except Exception:
        log.exception("append sink raised an error", extra={"ledger": ledger})


def _again(error: StorageError) -> StorageError:
    """A fresh exception for each caller: one that is raised again keeps all its frames."""
    return type(error)(error.reason)
