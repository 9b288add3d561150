"""One topic log on ledgers and metadata in memory, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.position import Position
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.storage.interface import Payload, StorageError
from anabranch.storage.ledger.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog, TopicLogSettings
from tests.support.models.memory_ledger_store import MemoryLedgerStore


class ManualTimer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.is_cancelled = due, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self._timers: list[ManualTimer] = []

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(seconds, lambda: done.set_result(None))
        await done

    def call_later(self, seconds: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.seconds + seconds, callback)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        due = [timer for timer in self._timers if timer.due <= self.seconds]
        self._timers = [timer for timer in self._timers if timer.due > self.seconds]
        for timer in sorted(due, key=lambda timer: timer.due):
            if not timer.is_cancelled:
                timer.callback()


class Receipts:
    """A sink that records outcomes in order."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Any, Position | str]] = []
        self._awaited = 0
        self._came = asyncio.Event()

    def persisted(self, ledger: int, entry: int, contexts: Sequence[Any]) -> None:
        for number, context in enumerate(contexts, entry):
            self._add(context, Position(ledger, number))

    def persist_failed(self, error: StorageError, context: Any) -> None:
        self._add(context, error.code)

    def _add(self, context: Any, outcome: Position | str) -> None:
        self.outcomes.append((context, outcome))
        if len(self.outcomes) >= self._awaited:
            self._came.set()

    async def wait(self, count: int) -> None:
        """Wait until that many outcomes have arrived in total."""
        self._awaited = count
        if len(self.outcomes) < count:
            self._came.clear()
            async with asyncio.timeout(60):
                await self._came.wait()

    @property
    def positions(self) -> list[Position]:
        return [outcome for _, outcome in self.outcomes if isinstance(outcome, Position)]

    @property
    def failures(self) -> list[tuple[Any, str]]:
        return [(context, outcome) for context, outcome in self.outcomes if isinstance(outcome, str)]


def publish_time_of(payload: Payload) -> int:
    """Test payloads are decimal numbers, which are their publish time. Other payloads (cursor state) have none."""
    text = bytes(payload)
    return int(text) if text.isdigit() else 0


class TopicWorld:
    def __init__(self, *, auto: bool = True) -> None:
        self.clock = ManualClock()
        self.metadata = MemoryStore(self.clock)
        self.records = MetadataRecords(self.metadata)
        self.ledgers = MemoryLedgerStore(publish_time_of=publish_time_of, auto=auto)
        self.receipts = Receipts()

    async def open(
        self,
        settings: TopicLogSettings | None = None,
        *,
        create: bool = True,
        ownership_epoch: int | None = None,
        create_with: Mapping[str, str] | None = None,
    ) -> TopicLog:
        await self.metadata.open()
        return await TopicLog.open(
            "t/n/topic",
            ledgers=self.ledgers,
            metadata=self.records,
            ids=LedgerIds(self.records),
            clock=self.clock,
            settings=settings,
            create=create,
            ownership_epoch=ownership_epoch,
            create_with=create_with,
        )

    def crash(self, *, auto: bool | None = None) -> None:
        """The process has crashed; only durable data is left."""
        self.ledgers = self.ledgers.crashed(auto=auto)

    async def fill(self, topic: TopicLog, count: int, *, messages: int = 1, first: int = 0) -> list[Position]:
        """Append numbers first, first+1 … and wait for them."""
        receipts = Receipts()
        for number in range(first, first + count):
            topic.append(b"%d" % number, messages, receipts, number)
        await self.settle(lambda: len(receipts.outcomes) == count)
        assert not receipts.failures
        return receipts.positions

    async def settle(self, condition: Callable[[], bool] = lambda: False, turns: int = 200) -> None:
        """Run the event loop until `condition` holds; without one, until nothing is left to do."""
        for _ in range(turns):
            if condition():
                return
            await asyncio.sleep(0)


async def read_all(topic: TopicLog) -> list[bytes]:
    found: list[bytes] = []
    at = topic.first_position
    while entries := await topic.read(at, 7, 1 << 20, topic.last_position):
        found.extend(bytes(entry.payload) for entry in entries)
        at = topic.after(entries[-1].position)
    return found
