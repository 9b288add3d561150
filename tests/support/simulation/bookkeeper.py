"""One ledger on five bookies: a writer, recoveries, a metadata store, and faults drawn from a seed.

Bookies behave as BookKeeper 4.18's: they take entries in any order and under any id, keep what they answered, and
refuse ordinary adds once a ledger is fenced. Requests are applied in the order of a connection, also those of a client
that has given the connection up. Faults: slow and lost answers, broken connections, crashed and frozen bookies, lost
answers and refused writes of the store, a writer that stands still, recoveries that end in the middle.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from anabranch.storage.bookkeeper.entry_body import EntryBody, read_body
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Quorums, Segment, write_set
from anabranch.storage.bookkeeper.recovery_state import (
    Absent,
    FenceRead,
    LedgerRecoveryState,
    ReadEntry,
    ReadMetadata,
    Recovered,
    RecoveryAdd,
    RecoveryEffect,
    RecoveryFailed,
)
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
from anabranch.storage.interface import StorageError

LEDGER = 7
THREE = Quorums()
TIMEOUT_S = 5.0
END_S = 60.0


@dataclass
class Bookie:
    name: str
    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False
    is_up: bool = True
    frozen_until: float = 0.0


class Store:
    """The node of the ledger, with every value that it had."""

    def __init__(self, first: LedgerMetadata) -> None:
        self.history = [first]

    @property
    def value(self) -> LedgerMetadata:
        return self.history[-1]

    @property
    def version(self) -> int:
        return len(self.history) - 1

    def save(self, wanted: LedgerMetadata, expected: int) -> bool:
        if expected != self.version:
            return False
        self.history.append(wanted)
        return True


class LedgerWorld:
    def __init__(self, seed: int, *, bookies: int = 5, quorums: Quorums = THREE, trouble: float = 0.05) -> None:
        self.random = Random(seed)
        self.trouble = trouble
        self.now = 0.0
        self.lines: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._busy_until: dict[tuple[str, str], float] = {}  # keeps the order of a connection
        self.bookies = {name: Bookie(name) for name in (f"b{n}" for n in range(bookies))}
        ensemble = tuple(self.random.sample(sorted(self.bookies), quorums.ensemble))
        self.store = Store(LedgerMetadata(quorums, (Segment(0, ensemble),)))
        self.writer = WriterProcess(self)
        self.recoveries: list[RecoveryProcess] = []

    # -- time

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay_s, self._number, call))

    def run(self, until_s: float = END_S) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = until_s

    def log(self, line: str) -> None:
        self.lines.append(f"{self.now:8.3f} {line}")

    def latency(self) -> float:
        return self.random.expovariate(1 / 0.02) + (
            self.random.random() * 2 if self.random.random() < self.trouble else 0
        )

    # -- requests

    def request(
        self,
        client: str,
        name: str,
        apply: Callable[[Bookie], object],
        answered: Callable[[object], None],
        failed: Callable[[str], None],
    ) -> None:
        """`failed` is called instead of `answered`, at the latest after the timeout. The request may be applied all the
        same, also later."""
        bookie, is_open = self.bookies[name], [True]

        def fail(reason: str) -> None:
            if is_open[0]:
                is_open[0] = False
                failed(reason)

        is_lost = self.random.random() < self.trouble / 4

        def arrive() -> None:
            if is_lost:
                fail("connection reset")
                return
            if not bookie.is_up:
                self.after(0.001, lambda: fail("connection refused"))
                return
            if self.now < bookie.frozen_until:
                self.after(bookie.frozen_until - self.now, arrive)
                return
            answer = apply(bookie)
            if self.random.random() < self.trouble / 4:
                self.after(self.latency(), lambda: fail("connection reset"))
                return

            def back() -> None:
                if is_open[0]:
                    is_open[0] = False
                    answered(answer)

            self.after(self._in_order(f"{name}>{client}"), back)

        self.after(self._in_order(f"{client}>{name}"), arrive)
        self.after(TIMEOUT_S, lambda: fail("no answer in time"))

    def _in_order(self, direction: str) -> float:
        key = (direction, "")
        at = max(self.now + self.latency(), self._busy_until.get(key, 0.0) + 1e-6)
        self._busy_until[key] = at
        return at - self.now

    def save(
        self, effect: SaveLedger, saved: Callable[[int], None], stored: Callable[[LedgerMetadata, int], None]
    ) -> None:
        """Compare-and-set. An answer that is lost, or says that another was first, is followed by a read."""

        def arrive() -> None:
            is_lost = self.random.random() < self.trouble  # before it is stored
            won = not is_lost and self.store.save(effect.metadata, effect.expected_version)
            if won:
                self.log(
                    f"stored {effect.metadata.state.name} {effect.metadata.segments} last {effect.metadata.last_entry}"
                )
            version = self.store.version
            if won and self.random.random() >= self.trouble:
                self.after(self.latency(), lambda: saved(version))
            else:
                self.after(self.latency(), lambda: self.read(stored))

        self.after(self.latency(), arrive)

    def read(self, stored: Callable[[LedgerMetadata, int], None]) -> None:
        value, version = self.store.value, self.store.version
        self.after(self.latency(), lambda: stored(value, version))

    def spares(self) -> list[str]:
        """Bookies that look writable now, in an order of its own for each question."""
        found = [name for name, bookie in self.bookies.items() if bookie.is_up]
        self.random.shuffle(found)
        return found

    # -- faults

    def crash(self, name: str, for_s: float) -> None:
        bookie = self.bookies[name]
        bookie.is_up = False
        self.log(f"{name} crashes")
        self.writer.on_connection_lost(name)

        def back() -> None:
            bookie.is_up = True
            self.log(f"{name} is back")
            self.writer.on_bookies_changed(name)

        self.after(for_s, back)

    def freeze(self, name: str, for_s: float) -> None:
        self.log(f"{name} is frozen")
        self.bookies[name].frozen_until = self.now + for_s

    # -- what must hold

    def check(self) -> None:
        final = self.store.value
        assert final.state is LedgerState.CLOSED, "a recovery without faults has run last"
        ends = {(one.last_entry, one.length) for one in self.store.history if one.is_closed}
        assert len(ends) == 1, f"closed at several ends: {ends}"
        last, length = ends.pop()
        confirmed = self.writer.confirmed
        assert confirmed <= last, f"entry {confirmed} was confirmed and the ledger ends at {last}"
        total = 0
        for entry in range(last + 1):
            replicas = self.replicas(final, entry)
            assert set(replicas) == {self.writer.payloads[entry]}, f"entry {entry}: {replicas}"
            assert len(replicas) >= final.quorums.ack, f"entry {entry} is on {len(replicas)} bookies only"
            total += len(self.writer.payloads[entry])
        assert total == length, f"{total} bytes, the metadata says {length}"
        for recovery in self.recoveries:
            if recovery.result is not None:
                assert (recovery.result.last_entry, recovery.result.length) == (last, length)
        if self.writer.closed is not None:
            assert self.writer.closed == (last, length)

    def replicas(self, metadata: LedgerMetadata, entry: int) -> list[bytes]:
        found = []
        for name in write_set(metadata.segment_of(entry).ensemble, entry, metadata.quorums.write):
            raw = self.bookies[name].entries.get(entry)
            if raw is not None:
                body = read_body(raw, LEDGER, entry)
                assert body is not None
                found.append(bytes(body.payload))
        return found


def _add(head: bytes, payload: bytes, entry: int, *, is_recovery: bool) -> Callable[[Bookie], bool]:
    def apply(bookie: Bookie) -> bool:
        if bookie.is_fenced and not is_recovery:
            return False
        bookie.entries[entry] = head + payload
        return True

    return apply


class WriterProcess:
    """The shell of the writer. `stall` keeps all that reaches it until later, as SIGSTOP does."""

    def __init__(self, world: LedgerWorld) -> None:
        self._world = world
        self.state = LedgerWriterState(LEDGER, world.store.value, 0)
        self.payloads: list[bytes] = []
        self.confirmed = -1
        self.failed_from: int | None = None
        self.closed: tuple[int, int] | None = None
        self.close_failed: StorageError | None = None
        self._is_closing = False
        self._stalled_until = 0.0
        self._broken: dict[str, int] = {}  # connections that were given up, by bookie

    def stall(self, for_s: float) -> None:
        self._stalled_until = self._world.now + for_s
        self._world.log("the writer stands still")

    def _when_running(self, call: Callable[[], None]) -> None:
        if self._world.now < self._stalled_until:
            self._world.after(self._stalled_until - self._world.now, lambda: self._when_running(call))
        else:
            call()

    def append(self) -> None:
        self._when_running(self._append)

    def _append(self) -> None:
        if self.state.failure is not None or self._is_closing:
            return
        payload = b"%d" % len(self.payloads) * self._world.random.randint(1, 3)
        self.payloads.append(payload)
        self._perform(self.state.append(payload))

    def close(self) -> None:
        self._is_closing = True
        self._when_running(lambda: self._perform(self.state.close()))

    def on_connection_lost(self, name: str) -> None:
        self._when_running(lambda: self._fail(name, "connection lost"))

    def on_bookies_changed(self, name: str) -> None:
        def call() -> None:
            self._perform(self.state.bookies_changed(self._world.spares()))
            self._perform(self.state.bookie_restored(name))

        self._when_running(call)

    def _fail(self, name: str, reason: str) -> None:
        self._broken[name] = self._broken.get(name, 0) + 1  # answers of the old connection do not arrive any more
        self._perform(self.state.bookie_failed(name, reason, self._world.spares()))

    def _perform(self, effects: Sequence[WriterEffect]) -> None:
        world = self._world
        for effect in effects:
            match effect:
                case SendAdd(bookie, entry, head, payload):
                    self._send(bookie, entry, head, bytes(payload))
                case Confirm(last):
                    assert self.failed_from is None, "confirmed after a failure"
                    assert last > self.confirmed
                    self.confirmed = last
                case FailAppends(first, error):
                    assert first == self.confirmed + 1 and self.failed_from is None
                    self.failed_from = first
                    world.log(f"the writer fails entries from {first} on: {error.reason}")
                case SaveLedger():
                    world.save(effect, self._on_saved, self._on_stored)
                case Closed(last, length):
                    self.closed = (last, length)
                    world.log(f"the writer has closed at {last}")
                case CloseFailed(error):
                    self.close_failed = error

    def _send(self, name: str, entry: int, head: bytes, payload: bytes) -> None:
        connection = self._broken.get(name, 0)

        def answered(answer: object) -> None:
            def call() -> None:
                if connection != self._broken.get(name, 0):
                    return
                self._perform(self.state.added(name, entry) if answer else self.state.fenced("a bookie is fenced"))

            self._when_running(call)

        def failed(reason: str) -> None:
            def call() -> None:
                if connection == self._broken.get(name, 0):
                    self._fail(name, reason)

            self._when_running(call)

        self._world.request("writer", name, _add(head, payload, entry, is_recovery=False), answered, failed)

    def _on_saved(self, version: int) -> None:
        self._when_running(lambda: self._perform(self.state.saved(version)) if self.state.is_waiting else None)

    def _on_stored(self, found: LedgerMetadata, version: int) -> None:
        self._when_running(lambda: self._perform(self.state.stored(found, version)) if self.state.is_waiting else None)


class RecoveryProcess:
    def __init__(self, world: LedgerWorld, name: str) -> None:
        self._world, self.name = world, name
        self.state = LedgerRecoveryState(LEDGER)
        self.result: LedgerMetadata | None = None
        self.error: StorageError | None = None
        self._has_crashed = False

    def start(self) -> None:
        self._perform(self.state.start())

    def crash(self) -> None:
        self._has_crashed = True

    def _step(self, effects: Callable[[], Sequence[RecoveryEffect]]) -> None:
        if not self._has_crashed and not self.state.has_ended:
            self._perform(effects())

    def _perform(self, effects: Sequence[RecoveryEffect]) -> None:
        for effect in effects:
            match effect:
                case ReadMetadata():
                    self._world.read(self._on_stored)
                case SaveLedger():
                    self._world.save(effect, self._on_saved, self._on_stored)
                case FenceRead(bookie):
                    self._fence(bookie)
                case ReadEntry(bookie, entry, fences):
                    self._read(bookie, entry, fences=fences)
                case RecoveryAdd(bookie, entry, head, payload):
                    self._add(bookie, entry, head, bytes(payload))
                case Recovered(metadata):
                    self.result = metadata
                    self._world.log(f"{self.name} has recovered: last {metadata.last_entry}")
                case RecoveryFailed(error):
                    self.error = error
                    self._world.log(f"{self.name} has failed: {error.reason}")

    def _fence(self, name: str) -> None:
        def apply(bookie: Bookie) -> EntryBody | Absent:
            bookie.is_fenced = True
            if not bookie.entries:
                return Absent.EXPLICIT
            last = max(bookie.entries)
            return read_body(bookie.entries[last], LEDGER, None) or Absent.UNKNOWN

        self._ask(name, apply, lambda answer: self.state.fence_answered(name, answer))

    def _read(self, name: str, entry: int, *, fences: bool) -> None:
        def apply(bookie: Bookie) -> EntryBody | Absent:
            bookie.is_fenced |= fences
            raw = bookie.entries.get(entry)
            if raw is None:
                return Absent.EXPLICIT
            return read_body(raw, LEDGER, entry) or Absent.UNKNOWN

        self._ask(name, apply, lambda answer: self.state.read_answered(name, entry, answer))

    def _ask(
        self,
        name: str,
        apply: Callable[[Bookie], EntryBody | Absent],
        then: Callable[[EntryBody | Absent], Sequence[RecoveryEffect]],
    ) -> None:
        def answered(answer: object) -> None:
            assert isinstance(answer, EntryBody | Absent)
            self._step(lambda: then(answer))

        self._world.request(self.name, name, apply, answered, lambda _: self._step(lambda: then(Absent.UNKNOWN)))

    def _add(self, name: str, entry: int, head: bytes, payload: bytes) -> None:
        self._world.request(
            self.name,
            name,
            _add(head, payload, entry, is_recovery=True),
            lambda _: self._step(lambda: self.state.added(name, entry)),
            lambda _: self._step(lambda: self.state.bookie_failed(name, entry, self._world.spares())),
        )

    def _on_saved(self, version: int) -> None:
        self._step(lambda: self.state.saved(version))

    def _on_stored(self, found: LedgerMetadata, version: int) -> None:
        self._step(lambda: self.state.stored(found, version))


def run_seed(seed: int) -> LedgerWorld:
    """A story of about half a minute, then a recovery without faults, then the checks."""
    draw = Random(~seed)
    quorums = (THREE, THREE, Quorums(3, 2, 2), Quorums(4, 3, 2), Quorums(3, 3, 3), Quorums(1, 1, 1))[seed % 6]
    world = LedgerWorld(
        seed,
        bookies=draw.choice((3, 4, 5, 6)) if quorums.ensemble < 4 else 6,
        quorums=quorums,
        trouble=(0.0, 0.05, 0.15)[seed // 6 % 3],
    )
    for _ in range(draw.randint(0, 12)):
        at = draw.uniform(0, 20)
        for _ in range(draw.choice((1, 1, 5, 15))):  # pipelined
            world.after(at, world.writer.append)
    for _ in range(draw.randint(0, 4)):
        at = draw.uniform(0, 20)
        for name in draw.sample(sorted(world.bookies), draw.choice((1, 1, 2))):
            if draw.random() < 0.6:
                world.after(at, partial(world.crash, name, draw.uniform(0.05, 10)))
            else:
                world.after(at, partial(world.freeze, name, draw.uniform(0.1, 12)))
    if draw.random() < 0.4:
        world.after(draw.uniform(0, 20), lambda: world.writer.stall(draw.uniform(1, 15)))
    if draw.random() < 0.5:
        world.after(draw.uniform(5, 25), world.writer.close)
    for number in range(draw.choice((0, 1, 1, 2, 3))):
        recovery = RecoveryProcess(world, f"recovery {number}")
        world.recoveries.append(recovery)
        begin = draw.uniform(0, 22)
        world.after(begin, recovery.start)
        if draw.random() < 0.4:
            world.after(begin + draw.uniform(0.01, 1), recovery.crash)
    world.run()
    world.trouble = 0.0
    for bookie in world.bookies.values():
        bookie.is_up, bookie.frozen_until = True, 0.0
    last = RecoveryProcess(world, "last recovery")
    world.recoveries.append(last)
    last.start()
    world.run(2 * END_S)
    assert last.result is not None, last.error
    world.check()
    return world
