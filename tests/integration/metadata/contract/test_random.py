"""Contract of every metadata backend, part eight: long random runs on two stores, compared with a dictionary.

ANABRANCH_RANDOM_RUNS=50 runs that many seeds; a failure names the seed and the step.
"""

from __future__ import annotations

import os
import random

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    Expected,
    KeyMissing,
    MetadataStore,
    Session,
    Version,
    Versioned,
    VersionMismatch,
)
from tests.support.in_memory.metadata_stores import World, bulk_items, must_get

SEEDS = range(int(os.environ.get("ANABRANCH_RANDOM_RUNS", "1")))
FLOOR = 1000
STEPS = 200
PARTS = ["a", "b", "a-", "é", "%2F", "\x01", "..", "."]
UNKNOWN = 1 << 40


class Run:
    """Applies steps to the stores and to a dictionary, and compares every answer."""

    def __init__(self, stores: list[MetadataStore], chance: random.Random, floor: Version | None) -> None:
        self._stores = stores
        self._chance = chance
        self._floor = floor
        self._twin: dict[str, tuple[bytes, Version]] = {}
        self._owners: dict[str, int] = {}  # which store's session an ephemeral key lives with
        self._sessions: dict[int, Session] = {}
        self._used: dict[str, set[Version]] = {}  # while a key lives no version comes twice
        self._created: dict[str, int] = {}  # of records that were moved in

    async def move_in(self) -> None:
        assert self._floor is not None
        moved = {
            self._key(): Versioned(b"m%d" % number, self._chance.randrange(FLOOR), 5, 6, False) for number in range(20)
        }
        await self._stores[0].raise_versions(self._floor)
        await self._stores[1].bulk_write(list(moved.items()), preserve=True)
        await self._stores[0].sync()
        for key, record in moved.items():
            self._twin[key], self._created[key], self._used[key] = (record.value, record.version), 5, {record.version}

    async def step(self, number: int) -> None:
        at = self._chance.randrange(len(self._stores))
        steps = [self._put, self._put_ephemeral, self._delete, self._end_session, self._bulk_write, self._bulk_delete]
        (step,) = self._chance.choices([*steps, self.check], [40, 20, 25, 4, 3, 3, 10])
        await step(at, b"%d" % number)

    async def check(self, at: int, _: bytes) -> None:
        store = self._stores[at]
        await store.sync()
        scanned = {key: record async for key, record in store.scan("/")}
        assert {key: (record.value, record.version) for key, record in scanned.items()} == self._twin
        assert {key for key, record in scanned.items() if record.ephemeral} == set(self._owners)
        assert dict(await bulk_items(store, "/")) == scanned
        assert {key: scanned[key].created_ms for key in self._created} == self._created
        for parent in {"", "/a", "/b/a", *(key.rpartition("/")[0] for key in self._twin)}:
            below = {key[len(parent) + 1 :].split("/")[0] for key in self._twin if key.startswith(f"{parent}/")}
            assert await store.children(parent or "/") == sorted(below)

    async def _put(self, at: int, value: bytes) -> None:
        await self._write(at, value, self._leaf() if self._chance.random() < 0.3 else self._key(), None)

    async def _put_ephemeral(self, at: int, value: bytes) -> None:
        if at not in self._sessions:
            self._sessions[at] = await self._stores[at].open_session(30_000)
        await self._write(at, value, self._leaf(), self._sessions[at])

    async def _write(self, at: int, value: bytes, key: str, session: Session | None) -> None:
        current, expected = self._current(key), self._expected(key)
        fits = expected is ANY or (current is None if expected is ABSENT else expected == current)
        try:
            version = await self._stores[at].put(key, value, expected=expected, session=session)
        except VersionMismatch as error:
            assert (fits, error.found) == (False, current), key
            return
        assert fits, key
        self._wrote(key, value, version)
        if session is not None:
            self._owners[key] = at

    async def _delete(self, at: int, _: bytes) -> None:
        key = self._chance.choice([self._leaf(), self._key(), *self._twin])
        current, expected = self._current(key), self._expected(key)
        if expected is ABSENT:
            return
        try:
            await self._stores[at].delete(key, expected=expected)
        except KeyMissing:
            assert current is None, key
        except VersionMismatch as error:
            assert expected is not ANY and expected != current is not None, key
            assert error.found == current
        else:
            assert current is not None and (expected is ANY or expected == current), key
            self._forget(key)

    async def _end_session(self, at: int, _: bytes) -> None:
        if at in self._sessions:
            await self._sessions.pop(at).close()
        for key in [key for key, owner in self._owners.items() if owner == at]:
            self._forget(key)

    async def _bulk_write(self, at: int, value: bytes) -> None:
        keys = {self._key() for _ in range(5)}
        await self._stores[at].bulk_write([(key, Versioned(value, 0, 0, 0, False)) for key in keys], preserve=False)
        for key in keys:
            self._wrote(key, value, (await must_get(self._stores[at], key)).version)

    async def _bulk_delete(self, at: int, _: bytes) -> None:
        keys = [*self._chance.sample(sorted(self._twin), min(5, len(self._twin))), "/missing"]
        await self._stores[at].bulk_delete(keys)
        for key in keys:
            self._forget(key)

    def _wrote(self, key: str, value: bytes, version: Version) -> None:
        used = self._used.setdefault(key, set())
        assert version not in used, key
        assert self._floor is None or version > self._floor
        used.add(version)
        self._twin[key] = (value, version)
        self._owners.pop(key, None)

    def _forget(self, key: str) -> None:
        for known in (self._twin, self._owners, self._used, self._created):
            known.pop(key, None)

    def _current(self, key: str) -> Version | None:
        return self._twin[key][1] if key in self._twin else None

    def _expected(self, key: str) -> Expected:
        current = self._current(key)
        used = self._chance.choice(sorted(self._used.get(key, {UNKNOWN})))
        near = self._chance.randrange(FLOOR, FLOOR + 40)
        choices: list[Expected] = [ABSENT, ANY, ANY, UNKNOWN if current is None else current, used, near]
        return self._chance.choice(choices)

    def _key(self) -> str:
        return "/" + "/".join(self._chance.choice(PARTS) for _ in range(self._chance.choice([1, 1, 2, 2, 3])))

    def _leaf(self) -> str:
        """Keys without children, which may be ephemeral."""
        return f"{self._key()}/leaf{self._chance.choice('12')}"


@pytest.mark.parametrize("moved", [False, True], ids=["fresh", "moved"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_operations_agree_with_a_dictionary(world: World, seed: int, moved: bool) -> None:
    run = Run([await world.open(), await world.open()], random.Random(seed), FLOOR if moved else None)
    if moved:
        await run.move_in()
    for number in range(STEPS):
        try:
            await run.step(number)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {number}: {error}") from error
    for at in (0, 1):
        await run.check(at, b"")
