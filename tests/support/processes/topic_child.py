"""A process that writes to a topic and acknowledges until it is killed; it prints what was confirmed to it.

Run as `python -m tests.support.processes.topic_child DIR FIRST`; prints the lines `stored N`, `acked N` (durably) and
`ready`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anabranch.metadata.open import open_store
from anabranch.model.position import EARLIEST, Position
from anabranch.node.adapters.metadata_records import MetadataRecords
from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.disk import RealDisk
from anabranch.storage.interface import Payload, StorageError
from anabranch.storage.ledger.ledger_ids import LedgerIds
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings
from anabranch.storage.topic.topic_log import TopicLog, TopicLogSettings

KEEP = TopicLogSettings(ledger_bytes_max=20_000, retention_ms=-1, retention_bytes=-1, state_bytes_max=2000)


def publish_time_of(payload: Payload) -> int:
    text = bytes(payload).rstrip()
    return int(text) if text.isdigit() else 0


class RealTopics:
    """Topic logs on the embedded store and SQLite, in one directory."""

    def __init__(self, ledgers: EmbeddedLedgerStore, records: MetadataRecords) -> None:
        self.ledgers, self.records, self.ids = ledgers, records, LedgerIds(records)

    async def open(self, name: str = "topic", settings: TopicLogSettings = KEEP) -> TopicLog:
        return await TopicLog.open(
            name,
            ledgers=self.ledgers,
            metadata=self.records,
            ids=self.ids,
            clock=SystemClock(),
            settings=settings,
        )


@asynccontextmanager
async def real_topics(directory: Path, **storage: Any) -> AsyncIterator[RealTopics]:
    blocking = ThreadBlocking(2)
    clock = SystemClock()
    try:
        async with (
            open_store(f"sqlite:///{directory / 'metadata'}", clock) as store,
            EmbeddedLedgerStore(
                StorageSettings(dir=directory / "data", **storage), RealDisk(), blocking, clock, publish_time_of
            ) as ledgers,
        ):
            yield RealTopics(ledgers, MetadataRecords(store))
    finally:
        await blocking.close()


class Printer:
    def __init__(self, topic: TopicLog, first: int) -> None:
        self._topic, self.next = topic, first
        self.positions: list[tuple[int, Position]] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            self._topic.append(b"%-100d" % self.next, 1, self, self.next)
            self.next += 1

    def persisted(self, ledger: int, entry: int, contexts: Sequence[int]) -> None:
        for number, context in enumerate(contexts, entry):
            print("stored", context, ledger, number)
            self.positions.append((context, Position(ledger, number)))
            self.send(1)

    def persist_failed(self, error: StorageError, context: Any) -> None:
        print("failed", context, error, flush=True)


async def main(directory: Path, first: int) -> None:
    async with real_topics(directory) as topics:
        topic = await topics.open()
        cursor = topic.cursors.get("s") or await topic.create_cursor("s", EARLIEST, {"made": "by child"})
        printer = Printer(topic, first)
        printer.send(50)
        print("ready", flush=True)
        while True:
            await asyncio.sleep(0.002)
            some = [pair for pair in printer.positions if pair[0] % 3]  # every third stays a hole
            printer.positions.clear()
            for _, position in some:
                cursor.ack(position, 1)
            await cursor.flush()
            for number, _ in some:
                print("acked", number)
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
