"""Compaction: keeps the last message of each key. `Keyed`, `Scan` and `Survivors` decide and are pure.
`Compactor` reads entries, writes the new view and activates it in one step.

There are two kinds of passes over the same entries. The first finds the last message of each key: all keys at once, or
one hash range after the other if there are more keys than fit into memory. The second writes the kept messages. In
between only one bit per message is stored. The old view is served until the new one is complete.

| message | result |
|---|---|
| with a key | the last message of the key is kept |
| with a key, null or empty value | removes the key, including this message |
| without a key | kept |
| chunk, or batch that only clients can open (encrypted, LZ4, ZSTD, Snappy) | kept unchanged |
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from anabranch.broker.errors import AlreadyRunning
from anabranch.model.errors import Error
from anabranch.model.position import EARLIEST, Position
from anabranch.protocol import entry as entries
from anabranch.protocol.errors import BadEntry
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import give_way
from anabranch.storage.cursor.ack_state import words_of
from anabranch.storage.interface import LedgerWriter, StorageError
from anabranch.storage.topic.compacted_view import CompactedRow, encode_entry
from anabranch.storage.topic.topic_log import StoredEntry, TopicLog

log = get_logger(__name__)

CURSOR = "__compaction"  # retains entries that are not compacted yet; named as in Pulsar
VIEW = -1  # source number of the previous view
STEP_ENTRIES, STEP_BYTES = 64, 256 * 1024
TURN_MESSAGES = 200  # examined between two turns of the event loop: about 2 ms
KEYS_MAX = 500_000
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024


class CompactionFailed(Error):
    code = "compaction-failed"
    retryable = True


# -- decisions


class Keyed(NamedTuple):
    """One message as compaction sees it."""

    key: str | None
    is_tombstone: bool
    is_out: bool = False  # removed by an earlier compaction


def messages_of(payload: entries.Bytes) -> list[Keyed] | None:
    """The messages of an entry; None for an entry that is kept unchanged."""
    try:
        of, data = entries.parts(payload)
        if of.num_chunks_from_msg > 1:
            return None
        if not of.HasField("num_messages_in_batch"):
            is_empty = of.null_value or not len(data) or (of.compression != 0 and of.uncompressed_size == 0)
            return [Keyed(_key(of.partition_key, of.partition_key_b64_encoded, of.HasField("partition_key")), is_empty)]
        return [
            Keyed(
                _key(one.partition_key, one.partition_key_b64_encoded, one.HasField("partition_key")),
                one.null_value or not content,
                one.compacted_out,
            )
            for one, content in entries.split_batch(payload)
        ]
    except BadEntry:
        return None


def _key(text: str | bytes, is_base64: bool, is_set: bool) -> str | None:
    if not is_set:
        return None
    plain = text if isinstance(text, str) else text.decode("latin-1")
    return f"b:{plain}" if is_base64 else f"t:{plain}"


class Place(NamedTuple):
    source: int
    ordinal: int
    is_tombstone: bool


class Counter:
    """Numbers the messages of each source (the previous view, or a ledger) in reading order."""

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}

    def take(self, source: int, count: int) -> int:
        first = self.totals.get(source, 0)
        self.totals[source] = first + count
        return first


class Survivors:
    """One bit per message: is it kept? 10^9 messages take 125 MB."""

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def add(self, source: int, ordinal: int) -> None:
        bits = self._bits.setdefault(source, bytearray())
        if len(bits) <= ordinal >> 3:
            bits.extend(bytes((ordinal >> 3) + 1 - len(bits)))
        bits[ordinal >> 3] |= 1 << (ordinal & 7)

    def has(self, source: int, ordinal: int) -> bool:
        bits = self._bits.get(source, b"")
        return ordinal >> 3 < len(bits) and bool(bits[ordinal >> 3] >> (ordinal & 7) & 1)


@dataclass(frozen=True, slots=True)
class KeyHashPartition:
    """Keys whose hash is `index` modulo `count`."""

    index: int = 0
    count: int = 1

    def holds(self, key: str) -> bool:
        return self.count == 1 or zlib.crc32(key.encode("utf-8", "surrogatepass")) % self.count == self.index

    def halves(self) -> tuple[KeyHashPartition, KeyHashPartition]:
        return KeyHashPartition(self.index, 2 * self.count), KeyHashPartition(self.index + self.count, 2 * self.count)


class Scan:
    """Finds the last message of every key of one hash range."""

    def __init__(self, keys: KeyHashPartition, keys_max: int) -> None:
        self.counter = Counter()
        self._keys, self._keys_max = keys, keys_max
        self._last: dict[str, Place] = {}

    @property
    def is_full(self) -> bool:
        """More keys than fit into memory: start again with half of the hash range."""
        return len(self._last) > self._keys_max

    def feed(self, source: int, messages: Sequence[Keyed] | None, survivors: Survivors) -> None:
        if messages is None:
            survivors.add(source, self.counter.take(source, 1))
            return
        first = self.counter.take(source, len(messages))
        for ordinal, (key, is_tombstone, is_out) in enumerate(messages, first):
            if is_out:
                continue
            if key is None:
                survivors.add(source, ordinal)
            elif self._keys.holds(key):
                self._last[key] = Place(source, ordinal, is_tombstone)

    def finish(self, survivors: Survivors) -> None:
        for source, ordinal, is_tombstone in self._last.values():
            if not is_tombstone:
                survivors.add(source, ordinal)


def remainder(payload: entries.Bytes, kept: Sequence[bool]) -> tuple[bytes | memoryview, tuple[int, ...] | None]:
    """A batch without the removed messages (their slots stay, empty and marked), and the ack set of the kept ones."""
    if all(kept):
        return bytes(payload), None
    mask = sum(1 << index for index, is_kept in enumerate(kept) if is_kept)
    return entries.without_messages(payload, kept), words_of(mask)


# -- execution


class Status(StrEnum):
    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(slots=True)
class CompactionStats:
    status: Status = Status.NOT_RUN
    last_error: str = ""
    removed: int = 0  # messages removed by the last run
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0


@dataclass(slots=True)
class _Window:
    """Appends of the new view that are not durable yet; the ledger's sink."""

    bytes: int = 0
    error: StorageError | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[int]) -> None:
        self.bytes -= sum(contexts)
        self.room.set()

    def append_failed(self, entry: StoredEntry, context: int, error: StorageError) -> None:
        self.bytes -= context
        self.error = error
        self.room.set()

    async def wait_room(self) -> None:
        while self.bytes > IN_FLIGHT_BYTES_MAX and self.error is None:
            self.room.clear()
            await self.room.wait()


class Compactor:
    def __init__(self, topic: str, topic_log: TopicLog, clock: Clock, keys_max: int = KEYS_MAX) -> None:
        self._topic = topic
        self._log = topic_log
        self._clock = clock
        self._keys_max = keys_max
        self.stats = CompactionStats()

    def load(self) -> None:
        view = self._log.compacted
        if view is not None:
            self.stats.status, self.stats.succeeded_ms = Status.SUCCESS, view.row.at_ms

    def claim(self) -> None:
        """Reserve the next run; the caller must call `run`. Raises AlreadyRunning."""
        if self.stats.status is Status.RUNNING:
            raise AlreadyRunning("Compaction already in progress")
        self.stats.status, self.stats.last_error = Status.RUNNING, ""

    async def run(self) -> None:
        began = self._clock.now_ms()
        stats = self.stats
        try:
            stats.removed = await self._compact()
        except Error as error:
            stats.status, stats.last_error, stats.failed_ms = Status.ERROR, error.reason, self._clock.now_ms()
            log.warning("compaction failed", extra={"topic": self._topic, "reason": error.reason})
            return
        except BaseException:  # cancelled with its topic
            stats.status, stats.last_error = Status.ERROR, "interrupted"
            raise
        stats.status, stats.succeeded_ms = Status.SUCCESS, self._clock.now_ms()
        stats.duration_ms = stats.succeeded_ms - began
        log.info("topic compacted", extra={"topic": self._topic, "removed": stats.removed, "ms": stats.duration_ms})

    async def hold(self) -> None:
        """From now on nothing is trimmed before it is compacted."""
        if CURSOR not in self._log.cursors:
            await self._log.create_cursor(CURSOR, self._log.first_position, {})

    async def _compact(self) -> int:
        """Compact once. Returns the number of removed messages."""
        await self.hold()
        view = self._log.compacted
        upto = self._log.last_position
        if upto == EARLIEST or (view is not None and view.horizon >= upto):
            return 0
        survivors, totals = await self._mark(upto)
        writer = await self._log.compacting.begin()
        try:
            row, seen, removed = await self._write(writer, upto, survivors)
            if seen != totals:
                raise CompactionFailed("entries became unreadable or were trimmed meanwhile; the old view is kept")
            await self._log.compacting.finish(row)
        except Error:
            await self._log.compacting.abandon()
            raise
        cursor = self._log.cursors[CURSOR]
        cursor.ack_cumulative(upto)
        await cursor.flush()
        return removed

    async def _mark(self, upto: Position) -> tuple[Survivors, dict[int, int]]:
        survivors = Survivors()
        ranges, totals = [KeyHashPartition()], None
        while ranges:
            keys = ranges.pop()
            scan = Scan(keys, self._keys_max)
            async for source, stored in self._entries(upto):
                scan.feed(source, messages_of(stored.payload), survivors)
                if scan.is_full:
                    ranges.extend(keys.halves())
                    break
            else:
                scan.finish(survivors)
                if totals is not None and totals != scan.counter.totals:
                    raise CompactionFailed("entries became unreadable or were trimmed meanwhile; the old view is kept")
                totals = scan.counter.totals
        return survivors, totals or {}

    async def _write(
        self, writer: LedgerWriter, upto: Position, survivors: Survivors
    ) -> tuple[CompactedRow, dict[int, int], int]:
        counter, window = Counter(), _Window()
        count = messages = removed = 0
        last, last_index = EARLIEST, -1
        async for source, stored in self._entries(upto):
            found = messages_of(stored.payload)
            size = 1 if found is None else len(found)
            first = counter.take(source, size)
            kept = [survivors.has(source, first + index) for index in range(size)]
            removed += kept.count(False)
            if not any(kept):
                continue
            payload, left = (bytes(stored.payload), None) if found is None else remainder(stored.payload, kept)
            data = encode_entry(stored.position, left, payload)
            left_messages = stored.messages if found is None else kept.count(True)
            window.bytes += len(data)
            writer.append(data, stored.messages, window, len(data))
            await window.wait_room()
            if window.error is not None:
                raise window.error
            count, messages, last = count + 1, messages + left_messages, stored.position
            is_batch = found is not None and (len(found) > 1 or entries.is_batch(stored.payload))
            last_index = max(i for i, is_kept in enumerate(kept) if is_kept) if is_batch else -1
        summary = await writer.seal()
        if window.error is not None or summary.entries != count:
            raise window.error or CompactionFailed("the view was not written completely")
        row = CompactedRow(
            ledger=writer.ledger_id,
            entries=count,
            messages=messages,
            bytes=summary.bytes,
            horizon=upto,
            last=last,
            last_index=last_index,
            at_ms=self._clock.now_ms(),
        )
        return row, counter.totals, removed

    async def _entries(self, upto: Position) -> AsyncIterator[tuple[int, StoredEntry]]:
        """Entries of the previous view, then of the log after its horizon, with turns for the event loop in between."""
        view, start, done = self._log.compacted, self._log.first_position, 0
        if view is not None:
            at = Position(0, 0)
            while step := await view.read(at, STEP_ENTRIES, STEP_BYTES):
                for stored in step:
                    yield VIEW, stored
                    done += stored.messages
                    if done >= TURN_MESSAGES:
                        done = 0
                        await give_way()
                at = Position(step[-1].position.ledger, step[-1].position.entry + 1)
                await give_way()
            start = self._log.after(view.horizon)
        while start <= upto and (step := await self._log.read(start, STEP_ENTRIES, STEP_BYTES, upto)):
            for stored in step:
                yield stored.position.ledger, stored
                done += stored.messages
                if done >= TURN_MESSAGES:
                    done = 0
                    await give_way()
            start = Position(step[-1].position.ledger, step[-1].position.entry + 1)
            await give_way()
