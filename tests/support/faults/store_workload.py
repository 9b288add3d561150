"""Clients that use a metadata store during faults, and the checks afterwards.

`Trial` runs one scenario: several clients work on a few keys and record every operation, one holds an ephemeral key,
and each has a mirror that a watch keeps current. After the fault every client must be able to write again without help;
then the recorded history is checked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    ChangeKind,
    Expected,
    KeyMissing,
    MetadataStore,
    OutcomeUnknown,
    Session,
    SessionEvent,
    StoreUnavailable,
    Versioned,
    VersionMismatch,
)
from anabranch.model.errors import Error
from tests.support.faults.linearizability import Answer, Found, Kind, Operation, Wrote, explain

SLACK_S = 8.0
"""What a busy machine may add to a deadline before we call it missed."""
RETRY_S = 0.02

T = TypeVar("T")
Reply = Found | Wrote | Answer | None


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Record:
    """The recorded operations of one trial."""

    operations: list[Operation] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    unknown: int = 0
    refused: int = 0

    def began(self, operation: Operation) -> None:
        """Before the request; `operation` has an unknown outcome so far."""

    def ended(self, operation: Operation | None) -> None:
        """None if it had no effect and no answer."""
        if operation is not None:
            self.operations.append(operation)

    def judge(self) -> None:
        assert self.violations == []
        complaint = explain(self.operations)
        assert complaint is None, complaint


class Client:
    """One store object, with recorded operations."""

    def __init__(
        self, name: str, store: MetadataStore, keys: Sequence[str], record: Record, deadline_s: float, seed: int
    ) -> None:
        self.name, self.store = name, store
        self.written = 0  # confirmed writes so far
        self._keys = keys
        self._record = record
        self._timeout_s = deadline_s + SLACK_S
        self._chance = random.Random(f"{name} {seed}")
        self._seen: dict[str, int] = {}
        self._count = 0

    async def work(self, stop: asyncio.Event, pace_s: float) -> None:
        while not stop.is_set():
            await self.step()
            await asyncio.sleep(self._chance.uniform(0, 2 * pace_s))

    async def step(self) -> None:
        key = self._chance.choice(self._keys)
        what = self._chance.choices(["get", "cas", "create", "put", "delete"], [30, 35, 12, 13, 10])[0]
        seen = self._seen.get(key)
        if what == "get" or (what == "cas" and seen is None):
            await self.read(key)
            return
        if what == "delete":
            answer = await self.delete(key, seen if seen is not None and self._chance.random() < 0.5 else ANY)
        elif what == "put":
            answer = await self.put(key, ANY)
        elif what == "create" or seen is None:
            answer = await self.put(key, ABSENT)
        else:
            answer = await self.put(key, seen)
        if answer is None or isinstance(answer, Answer):
            await self.read(key)  # as every client should: after anything but success, read again, then decide

    async def read(self, key: str) -> Reply:
        """A read after `sync`, which must agree with everything confirmed before it began."""

        async def ask() -> Found | Answer:
            await self.store.sync()
            found = await self.store.get(key)
            return Answer.NOTHING if found is None else Found(found.value, found.version)

        return await self._do(Kind.GET, key, b"", ANY, ask, 2 * self._timeout_s)

    async def put(self, key: str, expected: Expected) -> Reply:
        self._count += 1
        value = f"{self.name}-{self._count}".encode()

        async def ask() -> Wrote:
            return Wrote(await self.store.put(key, value, expected=expected))

        return await self._do(Kind.PUT, key, value, expected, ask, self._timeout_s)

    async def delete(self, key: str, expected: Expected) -> Reply:
        async def ask() -> Wrote:
            await self.store.delete(key, expected=expected)
            return Wrote(None)

        return await self._do(Kind.DELETE, key, b"", expected, ask, self._timeout_s)

    async def _do(
        self,
        kind: Kind,
        key: str,
        value: bytes,
        expected: Expected,
        ask: Callable[[], Awaitable[Found | Wrote | Answer]],
        timeout_s: float,
    ) -> Reply:
        """None if the store was unavailable, so that nothing was done."""
        called = now()
        answer: Found | Wrote | Answer
        self._record.began(Operation(self.name, key, kind, called, called, Answer.UNKNOWN, value, expected))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await ask()
        except TimeoutError:
            self._record.violations.append(f"{self.name}: {kind} {key} outlived its deadline ({timeout_s} s)")
            answer = Answer.UNKNOWN
        except VersionMismatch:
            answer = Answer.REFUSED
        except KeyMissing:
            answer = Answer.NOTHING
        except OutcomeUnknown:
            answer = Answer.UNKNOWN
            self._record.unknown += 1
        except StoreUnavailable:
            self._record.refused += 1
            self._record.ended(None)  # surely not applied: a read that returns this value is a violation
            return None
        except Error as error:
            self._record.violations.append(f"{self.name}: {kind} {key} failed with {error!r}")
            self._record.ended(None)
            return None
        if isinstance(answer, Found | Wrote) and answer.version is not None:
            self._seen[key] = answer.version
        elif answer is not Answer.REFUSED:
            self._seen.pop(key, None)
        if isinstance(answer, Wrote):
            self.written += 1
        is_known = kind is not Kind.GET or answer is not Answer.UNKNOWN
        done = Operation(self.name, key, kind, called, now(), answer, value, expected)
        self._record.ended(done if is_known else None)
        return answer


class Mirror:
    """A copy of a tree, kept current by a watch and reads."""

    def __init__(self, store: MetadataStore, tree: str) -> None:
        self._store, self._tree = store, tree
        self.known: dict[str, Versioned] = {}
        self.invalidations = 0

    async def keep(self) -> None:
        watch = self._store.watch(self._tree)
        try:
            self.known = await insist(self._scan)
            async for change in watch:
                if change.kind is ChangeKind.INVALIDATED:
                    self.invalidations += 1
                    self.known = await insist(self._scan)
                    continue
                key = change.key
                found = await insist(partial(self._store.get, key))
                if found is None:
                    self.known.pop(key, None)
                else:
                    self.known[key] = found
        finally:
            watch.close()

    async def _scan(self) -> dict[str, Versioned]:
        return {key: found async for key, found in self._store.scan(self._tree)}


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a read until the store answers."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)


@asynccontextmanager
async def opened(store: MetadataStore) -> AsyncIterator[MetadataStore]:
    """Open without a deadline, because opening is not under test here."""
    await insist(store.open)
    try:
        yield store
    finally:
        await store.close()


async def eventually(what: str, is_so: Callable[[], Awaitable[bool]], within_s: float) -> None:
    deadline = now() + within_s
    while not await is_so():
        assert now() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(RETRY_S)


class Trial:
    """One scenario. `stores` are affected by the fault, `witness` is not, or as little as possible."""

    def __init__(
        self,
        stores: Sequence[MetadataStore],
        witness: MetadataStore,
        *,
        tree: str,
        deadline_s: float,
        seed: int = 0,
        pace_s: float = 0.01,
        ttl_ms: int = 30_000,
        keys: int = 3,
        lanes: int = 1,
    ) -> None:
        """Every client has a fixed number of concurrent operations."""
        self.record = Record()
        self.witness = witness
        self.tree = tree
        self.keys = [f"{tree}/{name}" for name in "abcdefgh"[:keys]]
        self.clients = [
            Client(name, store, self.keys, self.record, deadline_s, seed)
            for name, store in [*((f"c{n}", store) for n, store in enumerate(stores)), ("witness", witness)]
        ]
        self.mirrors = [Mirror(client.store, tree) for client in self.clients]
        self.session: Session | None = None
        self.session_events: list[SessionEvent] = []
        self._pace_s, self._ttl_ms, self._lanes = pace_s, ttl_ms, lanes

    async def run(
        self,
        fault: Callable[[], Awaitable[None]],
        *,
        recover_s: float = 20.0,
        calm: int = 8,
        keeps_session: bool = True,
        others: Callable[[], Awaitable[Sequence[Operation]]] | None = None,
    ) -> Record:
        """`others` stops other clients of the same keys and returns their operations."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            mirrors = [group.create_task(mirror.keep()) for mirror in self.mirrors]
            if keeps_session:
                await self._hold_ephemeral()
            workers = [
                group.create_task(client.work(stop, self._pace_s))
                for client in self.clients
                for _ in range(self._lanes)
            ]
            try:
                await self._wait_written(calm, recover_s, "before the fault")
                await fault()
                await self._wait_written(calm, recover_s, "after the fault")
            finally:
                stop.set()
            await asyncio.wait(workers)
            if others is not None:
                self.record.operations += await others()
            if keeps_session:
                await self._check_ephemeral(recover_s)
            await self._read_all()
            await self._check_mirrors(recover_s)
            for mirror in mirrors:
                mirror.cancel()
        self.record.judge()
        return self.record

    async def _wait_written(self, more: int, within_s: float, when: str) -> None:
        """Wait until every client had a number of further writes confirmed."""
        targets = {client.name: client.written + more for client in self.clients}

        async def reached() -> bool:
            return all(client.written >= targets[client.name] for client in self.clients)

        behind = {client.name: targets[client.name] for client in self.clients}
        await eventually(f"{when} every client writes (to reach {behind})", reached, within_s)

    async def _hold_ephemeral(self) -> None:
        store = self.clients[0].store
        session = self.session = await insist(lambda: store.open_session(self._ttl_ms))
        session.listen(self.session_events.append)
        await insist(lambda: store.put(f"{self.tree}-live/held", b"held", expected=ANY, session=session))

    async def _check_ephemeral(self, within_s: float) -> None:
        """The fault was shorter than the session's ttl, so its key must be unchanged."""
        assert self.session is not None
        session = self.session
        found = await fresh(self.witness, f"{self.tree}-live/held")
        assert found is not None and found.ephemeral, "the ephemeral key did not survive a short fault"
        assert SessionEvent.LOST not in self.session_events

        async def is_sure() -> bool:
            return session.valid_until > now() and not session.is_lost

        await eventually("the session is valid again", is_sure, within_s)
        await insist(session.close)
        assert await fresh(self.witness, f"{self.tree}-live/held") is None

    async def _read_all(self) -> None:
        for client in self.clients:
            for key in self.keys:
                await client.read(key)

    async def _check_mirrors(self, within_s: float) -> None:
        for client, mirror in zip(self.clients, self.mirrors, strict=True):
            await eventually(
                f"the mirror of {client.name} shows the truth", partial(self._shows_truth, mirror), within_s
            )

    async def _shows_truth(self, mirror: Mirror) -> bool:
        """Read again each time, because a timed-out write may still be applied."""

        async def scan() -> dict[str, Versioned]:
            await self.witness.sync()
            return {key: found async for key, found in self.witness.scan(self.tree)}

        return mirror.known == await insist(scan)


async def fresh(store: MetadataStore, key: str) -> Versioned | None:
    async def ask() -> Versioned | None:
        await store.sync()
        return await store.get(key)

    return await insist(ask)
