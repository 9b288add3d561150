"""The append path of a topic: one open ledger at a time, entries in order.

Appends go directly to the writer of the open ledger. They are *parked* while the topic switches to its next ledger.
After a failed append all later ones fail too, in order, because a topic has no holes. The ledger of a failed append is
sealed at its last durable entry; the next append opens a new ledger.

Steps of a switch: announce the next ledger in the topic record; park appends; wait for those in flight; seal; create;
append what was parked. After a failure the ledger is sealed first, so that the record which announces the next one also
fixes where the failed one ends: producers send the failed entries again, and these must not appear twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.interface import LedgerStore, LedgerWriter, Payload, StorageError, StoredEntry
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain

log = get_logger(__name__)


class TopicSink(Protocol):
    """Receives the outcome of appends to a topic, on the event loop and in append order."""

    def persisted(self, ledger: int, entry: int, contexts: Sequence[Any]) -> None:
        """Consecutive entries of a ledger, starting at `entry`, are durable."""

    def persist_failed(self, error: StorageError, context: Any) -> None: ...


class TopicUnavailable(StorageError):
    """No new ledger can be opened at the moment, because storage is full or the metadata store is unavailable."""

    code = "topic-unavailable"
    retryable = True


_Parked = tuple[Payload, int, TopicSink, Any]


class _Run:
    """Consecutive appends of one sink."""

    __slots__ = ("count", "sink")

    def __init__(self, sink: TopicSink) -> None:
        self.sink = sink
        self.count = 0


class TopicAppender:
    def __init__(
        self,
        chain: LedgerChain,
        *,
        ledgers: LedgerStore,
        clock: Clock,
        tasks: TaskOwner,
        ledger_bytes_max: int,
        next_ledger: Callable[[], Awaitable[int]],
        release: Callable[[int], None],
        on_switched: Callable[[], None],
    ) -> None:
        """`next_ledger` allocates an id and writes it to the topic record. `release` gets ledgers without entries, to
        be deleted when the topic record has released them."""
        self._chain, self._ledgers, self._clock, self._tasks = chain, ledgers, clock, tasks
        self._next_ledger, self._release, self._on_switched = next_ledger, release, on_switched
        self._ledger_bytes_max = ledger_bytes_max
        self._roll_at = ledger_bytes_max
        self.opened_at_ms = clock.now_ms()
        self._writer: LedgerWriter | None = None  # None: appends are parked
        self._current: LedgerWriter | None = None  # writer of the open ledger, also while appends are parked
        self._info: ChainLedger | None = None
        self._announced: int | None = None
        self._inflight = 0
        self._runs: deque[_Run] = deque()  # sinks of the appends in flight, in append order
        self._parked: deque[_Parked] = deque()
        self._failure: StorageError | None = None  # an append failed: the open ledger takes no more
        self._refusal: StorageError | None = (
            None  # the store refused an append: the open ledger may be used again later
        )
        self._stopped: StorageError | None = None
        self._switch: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None

    def start(self, ledger_id: int) -> None:
        """Open a ledger that is new and announced. If the store refuses, the next append tries again."""
        self._announced = ledger_id
        self._current = self._writer = self._ledgers.create(ledger_id)
        self._info = self._chain.open(ledger_id)
        self._announced = self._failure = self._refusal = None
        self._roll_at = self._ledger_bytes_max
        self.opened_at_ms = self._clock.now_ms()

    @property
    def announced(self) -> int | None:
        return self._announced

    def set_ledger_bytes_max(self, ledger_bytes_max: int) -> None:
        self._ledger_bytes_max = self._roll_at = ledger_bytes_max

    def append(self, payload: Payload, messages: int, sink: TopicSink, context: Any) -> None:
        self.append_run((payload,), (messages,), sink, (context,))

    def append_run(
        self, payloads: Sequence[Payload], messages: Sequence[int], sink: TopicSink, contexts: Sequence[Any]
    ) -> None:
        writer = self._writer
        if writer is not None:
            try:
                writer.append_run(payloads, messages, self, contexts)
            except StorageError as error:
                self._refusal, self._writer = error, None
            else:
                count, runs = len(contexts), self._runs
                if not runs or runs[-1].sink is not sink:
                    runs.append(_Run(sink))
                runs[-1].count += count
                self._inflight += count
                if writer.bytes >= self._roll_at and self._switch is None:
                    self._start_switch()
                return
        for payload, count, context in zip(payloads, messages, contexts, strict=True):
            self._park((payload, count, sink, context))

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        info, writer = self._info, self._current
        assert info is not None
        assert writer is not None
        info.messages, info.bytes = writer.durable_messages, writer.durable_bytes
        self._chain.last = last = entries[-1].position
        info.entries = last.entry + 1
        self._inflight -= len(entries)
        at = 0
        while at < len(contexts):
            run = self._runs[0]
            count = min(run.count, len(contexts) - at)
            self._take_from(run, count)
            part = contexts if count == len(contexts) else contexts[at : at + count]
            run.sink.persisted(info.id, entries[at].position.entry, part)
            at += count
        if not self._inflight and self._writer is None:
            self._went_idle()

    def _take_from(self, run: _Run, count: int) -> None:
        run.count -= count
        if not run.count:
            self._runs.popleft()

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self._failure, self._writer = error, None
        self._inflight -= 1
        run = self._runs[0]
        self._take_from(run, 1)
        run.sink.persist_failed(error, context)
        if not self._inflight:
            self._went_idle()

    async def roll(self) -> None:
        """Switch to a new ledger, unless the open one is empty."""
        if self._stopped is None and self._switch is None and self._info is not None and self._info.entries:
            self._start_switch()
        await self._wait_switch()

    async def stop(self, error: StorageError) -> None:
        """Fail later appends with `error`, wait for those in flight, and seal the open ledger."""
        await self._wait_switch()
        self._stopped, self._writer = error, None
        await self._wait_idle()
        await self._seal()

    def abandon(self, error: StorageError) -> None:
        """Another broker owns the topic: fail all appends from now on, and seal nothing."""
        self._stopped, self._writer = error, None
        self._schedule_idle()

    def resume(self) -> None:
        """Undo `stop`; the next append opens a new ledger."""
        self._stopped = None

    def _park(self, parked: _Parked) -> None:
        self._parked.append(parked)
        if self._stopped is not None or self._refusal is not None:
            self._schedule_idle()
        elif self._switch is None and not self._inflight:
            self._start_switch()

    def _schedule_idle(self) -> None:
        """Fail parked appends, but never before those in flight and never inside `append`."""
        if not self._inflight:
            asyncio.get_running_loop().call_soon(self._went_idle)

    def _went_idle(self) -> None:
        if self._inflight:
            return
        error = self._failure or self._refusal or self._stopped
        if error is not None:
            failed, self._parked = self._parked, deque()
            is_refused, self._refusal = self._refusal is not None, None
            if is_refused and self._failure is None and self._stopped is None and self._switch is None:
                self._writer = self._current
            for _, _, sink, context in failed:
                sink.persist_failed(error, context)
        if self._idle is not None:
            idle, self._idle = self._idle, None
            if not idle.done():
                idle.set_result(None)

    async def _wait_idle(self) -> None:
        if self._inflight:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def _wait_switch(self) -> None:
        while self._switch is not None:
            await asyncio.wait([self._switch])

    def _start_switch(self) -> None:
        self._switch = self._tasks.spawn(self._run_switch(), "switch")
        if self._switch is None:
            self._stopped = self._stopped or StorageError("the topic is closed")
            self._writer = None
            self._schedule_idle()

    async def _run_switch(self) -> None:
        try:
            if self._failure is not None:
                await self._wait_idle()
                await self._seal()
            if self._announced is None:
                self._announced = await self._next_ledger()
            self._writer = None
            await self._wait_idle()
            await self._seal()
            if self._stopped is None:
                self.start(self._announced)
        except Error as error:
            self._switch_failed(error)
        finally:
            self._switch = None
        parked, self._parked = self._parked, deque()
        for payload, messages, sink, context in parked:
            self.append(payload, messages, sink, context)
        if self._writer is not None:
            self._on_switched()

    def _switch_failed(self, error: Error) -> None:
        """The next ledger could not be announced.

        A sound open ledger is used a bit longer; otherwise parked appends fail.
        """
        log.warning(
            "new ledger not opened", extra={"ledger": self._info.id if self._info else None, "reason": str(error)}
        )
        if self._current is not None and self._failure is None and self._stopped is None:
            self._writer = self._current
            self._roll_at = self._current.bytes + max(self._ledger_bytes_max >> 4, 1)
            return
        reason = error if isinstance(error, StorageError) else TopicUnavailable(error.reason)
        failed, self._parked = self._parked, deque()
        for _, _, sink, context in failed:
            sink.persist_failed(reason, context)

    async def _seal(self) -> None:
        """Make the length of the open ledger final: its last durable entry, as reported to the sinks."""
        writer, info = self._current, self._info
        self._current = None
        if writer is None or info is None:
            return
        try:
            summary = await writer.seal()
            info.file_bytes, info.last_publish_ms = summary.file_bytes, summary.last_publish_ms
        except StorageError as error:
            log.warning(
                "ledger not sealed by the store; its durable length is used",
                extra={"ledger": info.id, "reason": str(error)},
            )
        info.sealed = True
        info.sealed_at_ms = self._clock.now_ms()
        self._info = None
        for empty in self._chain.drop_empty():
            self._release(empty.id)
