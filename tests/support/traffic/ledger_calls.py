"""Appends to and reads of one ledger through the storage port, with payloads that can be checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from anabranch.storage.interface import LedgerStore, LedgerWriter, Payload, StorageError, StoredEntry


def publish_time_of(payload: Payload) -> int:
    return int(bytes(payload[:8]))


def payload_of(number: int, size: int = 100) -> bytes:
    return f"{number:08d}".encode().ljust(size, bytes([number % 251]))


class Sink:
    """Notes the outcomes; `wait` until there are so many."""

    def __init__(self) -> None:
        self.durable: list[tuple[int, int]] = []
        self.failed: list[tuple[int, int, StorageError]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        assert not self.failed, "an entry is confirmed after a failed one"
        self.durable += [entry.position for entry in entries]
        self._wake()

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self.failed.append((*entry.position, error))
        self._wake()

    def _wake(self) -> None:
        for count, waiter in self._waiting:
            if len(self.durable) + len(self.failed) >= count and not waiter.done():
                waiter.set_result(None)

    async def wait(self, count: int) -> None:
        if len(self.durable) + len(self.failed) < count:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((count, waiter))
            await asyncio.wait_for(waiter, 30)


def append(writer: LedgerWriter, sink: Sink, count: int, size: int = 100) -> None:
    start = writer.next_entry_id
    for number in range(start, start + count):
        writer.append(payload_of(number, size), 1 + number % 3, sink, None)


async def fill(writer: LedgerWriter, sink: Sink, count: int, size: int = 100) -> None:
    start = writer.next_entry_id
    append(writer, sink, count, size)
    await sink.wait(start + count)


async def read_all(store: LedgerStore, ledger_id: int, entries: int) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    while len(found) < entries:
        part = await store.read(ledger_id, len(found), entries, 1000, 1 << 20)
        assert part
        found += [(entry.position.entry, entry.messages, bytes(entry.payload)) for entry in part]
    return found


def expected(count: int, size: int = 100) -> list[tuple[int, int, bytes]]:
    return [(number, 1 + number % 3, payload_of(number, size)) for number in range(count)]
