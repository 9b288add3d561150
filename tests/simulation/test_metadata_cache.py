"""Caches under trouble: no value older than one already seen, no change lost, every change made exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from anabranch.metadata.interface import OutcomeUnknown, StoreUnavailable
from anabranch.metadata.recipes.cache import Cached, MetadataCache
from tests.support.simulation.metadata_processes import RETRY_DELAYS, Process, World, run_seed, seeds

KEYS = ("/records/a", "/records/b")


@dataclass(frozen=True)
class Record:
    """Who changed it, in order: so every reader can be checked against every writer."""

    marks: tuple[str, ...]

    @staticmethod
    def encode(record: Record) -> bytes:
        return " ".join(record.marks).encode()

    @staticmethod
    def decode(stored: bytes) -> Record:
        return Record(tuple(stored.decode().split()))


@dataclass
class Book:
    """What everybody did."""

    confirmed: dict[str, list[str]] = field(default_factory=lambda: {key: [] for key in KEYS})
    doubtful: set[str] = field(default_factory=set)


class Reader:
    """Checks what one process's cache serves."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seen: dict[str, tuple[str, ...]] = dict.fromkeys(KEYS, ())

    def seen(self, key: str, found: Cached[Record] | None, at_start: tuple[str, ...]) -> None:
        marks = () if found is None else found.value.marks
        self._process.world.check(
            marks[: len(at_start)] == at_start,
            f"{self._process.name}: {key} was {at_start[-3:]} already, and is {marks[-3:]} again",
        )
        if len(marks) > len(self._seen[key]):
            self._seen[key] = marks

    def last(self, key: str) -> tuple[str, ...]:
        return self._seen[key]


async def read(process: Process, cache: MetadataCache[Record], reader: Reader) -> None:
    chance = process.world.chance
    while True:
        await process.clock.sleep(chance.random() * 0.3)
        key = chance.choice(KEYS)
        at_start = reader.last(key)
        try:
            found = await (cache.get_fresh(key) if chance.random() < 0.02 else cache.get(key))
        except StoreUnavailable:
            continue
        reader.seen(key, found, at_start)


async def write(process: Process, cache: MetadataCache[Record], reader: Reader, book: Book) -> None:
    chance, number = process.world.chance, 0
    while True:
        await process.clock.sleep(chance.random() * 0.4)
        if not process.faults.trouble:
            continue
        number += 1
        key, mark = chance.choice(KEYS), f"{process.name}.{number}"
        at_start = reader.last(key)
        book.doubtful.add(mark)

        def change(old: Record | None, mark: str = mark) -> Record:
            return Record((*(old.marks if old is not None else ()), mark))

        def contains(record: Record, mark: str = mark) -> bool:
            return mark in record.marks

        try:
            new = await cache.read_modify_write(
                key, change, seconds=2, contains=contains if chance.random() < 0.5 else None
            )
        except (OutcomeUnknown, StoreUnavailable):
            continue
        book.doubtful.discard(mark)
        book.confirmed[key].append(mark)
        reader.seen(key, new, at_start)


def number_of(process: Process) -> int:
    return int(process.name[1:])


async def live(process: Process, book: Book) -> None:
    cache = MetadataCache(
        process.store,
        "/records",
        decode=Record.decode,
        encode=Record.encode,
        clock=process.clock,
        chance=process.world.chance,
        keeper=process.keeper,
        entries_max=1 if process.world.chance.random() < 0.2 else 10,
        patience=RETRY_DELAYS,
    )
    reader = Reader(process)
    async with cache, asyncio.TaskGroup() as group:
        process.note = cache
        for _ in range(3):
            group.create_task(read(process, cache, reader))
        if number_of(process) % 3:  # the others only read, and have to hear of everything
            group.create_task(write(process, cache, reader, book))


async def scenario(world: World) -> None:
    book = Book()

    async def work(process: Process) -> None:
        await live(process, book)

    for _ in range(3):
        world.start(work)
    await world.chaos(10, work)
    await asyncio.sleep(4)
    for key in KEYS:
        stored = world.data.get(key)
        marks = Record.decode(stored.value).marks if stored is not None else ()
        world.check(len(set(marks)) == len(marks), f"{key}: a change was made twice: {marks}")
        missing = [mark for mark in book.confirmed[key] if mark not in marks]
        world.check(not missing, f"{key}: confirmed and not there: {missing}")
        for process in world.alive:
            cache = process.note
            assert isinstance(cache, MetadataCache)
            found = await cache.get(key)
            world.check(
                (found.value.marks if found is not None else ()) == marks, f"{process.name} serves {key} as it was"
            )
    world.check(sum(map(len, book.confirmed.values())) > 0, "nothing happened in this world")


@pytest.mark.parametrize("span", seeds(500, 10))
def test_never_back_in_time(span: range) -> None:
    for seed in span:
        run_seed(seed, scenario, latency_s=0.05)  # slow, so that reads, changes and hints overlap
