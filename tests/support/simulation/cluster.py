"""Several brokers on one metadata store and one volume, in one thread, under simulated time: everything fails by seed.

A `Broker` is one life of a broker: the real `Cluster` (with keeper, registration, election, mirrors) on a `MemoryStore`
that loses and delays, and a small model of what a broker does with its slots: it writes records to its log, confirms
them when they are durable, *and* its fence is held, *and* its lease is valid, *and* the slot is served; it brings them
to the ledgers later, or when it hands the slot over. Brokers are killed, stopped and resumed, cut off, muted, robbed
of their session, drained and started again, between any two effects.

Checked all the time:
- a broker that opens a slot finds in the ledgers everything that was ever confirmed for it;
- after that no earlier owner confirms anything for it: never two confirming owners;
- the table's serial and term only grow, and so does each slot's epoch; a holder changes only with its epoch;
- a slot leaves a living holder only by its own hand, to the heir that was planned (that plans move no more than balance
  needs is a property of `assignment`, tested there).

Checked at the end: when the faults stop everything is served again within `SETTLE_SECONDS`; after closing there is no
task, no session and no registration left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from anabranch.cluster.broker_info import BrokerInfo
from anabranch.cluster.cluster import SLOTS_KEY, Cluster
from anabranch.cluster.slot_table import Table, decode_table
from anabranch.cluster.slots import SLOTS
from anabranch.metadata.interface import Change
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error
from tests.support.in_memory.simulated_loop import LoopClock
from tests.support.simulation.metadata_processes import ProcessClock, SeededFaults
from tests.support.simulation.volume_model import Record, Volume

SESSION_MS = 2_000
SETTLE_SECONDS = 40.0
BUSY_SLOTS = 12  # so many slots have traffic: enough to see each rule broken, few enough for a thousand seeds
LINES_SHOWN = 120


class Fenced(Error):
    code = "fenced"


@dataclass(slots=True)
class TopicRecord:
    """One topic per busy slot: its metadata record."""

    version: int = 0
    ownership_epoch: int = 0
    opening: object = None  # whose confirmations count


class Broker:
    """One life: from the lock of its directory to its end, by itself or not."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world, self.name = world, name
        self.clock = ProcessClock(world.chance)
        self.faults = SeededFaults(world.chance, world.trouble, world.latency_s)
        self.store = MemoryStore(self.clock, world.data, self.faults, name)
        self.generation = 0
        self.cluster: Cluster | None = None
        self.is_dead = self.is_cut = self.is_leaving = False
        self.over = asyncio.Event()  # asked to stop, or stepped down
        self._is_stopped = False  # takes no more records
        self._open: dict[int, object] = {}  # slot → the opening that is ours
        self._unflushed: dict[int, list[Record]] = {}
        self._writing: dict[int, int] = {}  # slot → records on their way to a confirmation

    def say(self, what: str) -> None:
        self.world.say(f"{self.name}#{self.generation}: {what}")

    @property
    def incarnation(self) -> BrokerIncarnation:
        return BrokerIncarnation(self.name, self.generation)

    @property
    def is_fence_held(self) -> bool:
        return self.world.volume.directory(self.name).fence == self.generation

    async def pause(self) -> None:
        await self.clock.sleep(0.001 + self.world.chance.random() * 0.05)

    # -- one life

    async def live(self) -> None:
        directory = self.world.volume.directory(self.name)
        while directory.lock is not None:
            await self.pause()
        directory.lock = self
        try:
            self.generation = await self.world.volume.take_over(self.name, self.pause)
            self.say("starts")
            await self.store.open()
            self.cluster = self._make_cluster()
            async with self.cluster:
                writing = asyncio.get_running_loop().create_task(self._write())
                try:
                    await self.over.wait()
                    if self.is_leaving and not self.cluster.has_stepped_down:
                        is_empty = await self.cluster.drain(5.0)
                        self.say(f"drained: {is_empty}")
                        if not self.cluster.has_stepped_down:
                            await self.close_rest()
                finally:
                    writing.cancel()
                    await asyncio.wait([writing])
            self.world.check(not len(self.cluster._tasks), f"{self.name} left tasks behind")
        finally:
            self.is_dead = True
            if directory.lock is self:
                directory.lock = None
        await self.store.close()
        self.say("ends")

    def _make_cluster(self) -> Cluster:
        info = BrokerInfo(self.name, self.generation, f"pulsar://{self.name}", f"http://{self.name}", "v", "0", 0)
        return Cluster(
            self.store,
            info,
            serving=self,
            recover=self._recover,
            clock=self.clock,
            chance=self.world.chance,
            session_ms=SESSION_MS,
        )

    async def _recover(self, broker: str, incarnation: int) -> None:
        self.say(f"recovers {broker}#{incarnation}")
        if self.world.chance.random() < self.faults.trouble:
            raise Fenced("the disk fails")
        me = object()
        try:
            await self.world.volume.recover_peer(broker, incarnation, me, self.pause)
        except asyncio.CancelledError:  # a killed process leaves no lock behind
            if self.world.volume.directory(broker).lock is me:
                self.world.volume.directory(broker).lock = None
            raise

    # -- what it does with its slots

    async def _write(self) -> None:
        """Traffic: a record for one of the busy slots we serve, now and then."""
        chance = self.world.chance
        tasks: dict[asyncio.Task[None], None] = {}
        try:
            while True:
                await self.clock.sleep(0.02 + chance.random() * 0.1)
                mine = sorted(self._served() & self.world.busy)
                if mine and not self._is_stopped:
                    task = asyncio.get_running_loop().create_task(self._append(chance.choice(mine)))
                    tasks[task] = None
                    task.add_done_callback(lambda done: tasks.pop(done, None))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _served(self) -> frozenset[int]:
        assert self.cluster is not None
        return self.cluster.serving if self.cluster.is_valid else frozenset()

    async def open(self, slot: int) -> object | None:
        """A topic is opened as `storage/topic/topic_open.py` does it: its record is read, its ledgers are measured, the
        record is written by compare-and-set. None: a broker with a later ownership
        epoch opened it, or this broker does not hold it any more."""
        assert self.cluster is not None
        record = self.world.topics[slot]
        while slot not in self._open:
            version, held = record.version, self.cluster.table.slots[slot]
            if held.holder != self.incarnation or held.epoch < record.ownership_epoch:
                return None
            found = set(self.world.volume.ledgers.get(slot, ()))
            await self.pause()
            if slot in self._open or record.version != version:
                continue
            self._open[slot] = self.world.opened(self, slot, found, held.epoch)
            self._unflushed[slot] = []
        return self._open[slot] if slot in self._served() else None

    async def _append(self, slot: int) -> None:
        directory = self.world.volume.directory(self.name)
        self._writing[slot] = self._writing.get(slot, 0) + 1
        try:
            opening = await self.open(slot)
            if opening is None:
                return
            record = self.world.next_record()
            if self.generation in directory.logs:  # otherwise the file is unlinked: written into nothing
                directory.logs[self.generation].append((slot, record))
            await self.pause()  # fdatasync
            assert self.cluster is not None
            while not self.cluster.is_valid:  # durable, but perhaps not ours to confirm
                if not self.is_fence_held or self.cluster.has_stepped_down:
                    return
                await self.clock.sleep(0.05)
            if not self.is_fence_held:
                self.fenced()
                return
            self.world.confirmed(self, slot, opening, record)
            self._unflushed[slot].append(record)
            if self.world.chance.random() < 0.2:
                self.flush(slot)
        finally:
            self._writing[slot] -= 1

    def flush(self, slot: int) -> None:
        """Write-behind: what is in the log goes to the ledger files too."""
        self.world.volume.flush(slot, self._unflushed[slot])
        self._unflushed[slot] = []

    async def close_rest(self) -> None:
        """A stopping broker closes the slots that were not taken: all durable, nothing confirmed afterwards."""
        self._is_stopped = True
        for slot in list(self._open):
            await self._close(slot)

    async def _close(self, slot: int) -> None:
        while self._writing.get(slot):
            await self.clock.sleep(0.01)
        await self.pause()
        if not self.is_fence_held:
            raise Fenced("another has our log")
        if slot in self._open:
            self.flush(slot)
            del self._open[slot]

    def fenced(self) -> None:
        self.say("finds itself fenced")
        self.over.set()

    # -- the cluster's Serving

    async def close(self, next_holders: Mapping[int, BrokerInfo | None]) -> Callable[[], None]:
        await self.pause()
        fails_at = (
            self.world.chance.choice(sorted(next_holders))
            if self.world.chance.random() < self.faults.trouble / 4
            else -1
        )
        for slot in sorted(next_holders):
            if slot == fails_at:
                raise Fenced("the disk fails")
            if slot in self._open or self._writing.get(slot):  # or just being opened
                await self._close(slot)
        self.world.waiting.update({(self.name, self.generation, slot) for slot in next_holders})
        return partial(self._finish_moves, frozenset(next_holders))

    def _finish_moves(self, slots: frozenset[int]) -> None:
        for slot in slots:
            self.world.waiting.discard((self.name, self.generation, slot))

    def loads(self) -> Mapping[int, float]:
        assert self.cluster is not None
        return {slot: self.world.loads.get(slot, 0.0) for slot in self.cluster.serving}

    def step_down(self, reason: str) -> None:
        self.say(f"gives up: {reason}")
        self.over.set()


class ClusterWorld:
    def __init__(self, seed: int, *, trouble: float, latency_s: float) -> None:
        self.seed, self.trouble, self.latency_s = seed, trouble, latency_s
        self.chance = random.Random(seed)
        self.clock = LoopClock()
        self.data = MemoryData(self.clock)
        self.volume = Volume()
        self.busy = frozenset(self.chance.sample(range(SLOTS), BUSY_SLOTS))
        self.lives: dict[str, Broker] = {}
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self.waiting: set[tuple[str, int, int]] = set()  # clients of closed slots that got no close notification
        self.records = 0
        self.loads: dict[int, float] = {}  # slot → bytes per second, on any broker
        self.all_confirmed: dict[int, set[Record]] = {}
        self.topics = {slot: TopicRecord() for slot in self.busy}
        self.is_calm = False
        self.table = Table()
        self.writes = self.moves = 0
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._current: dict[str, asyncio.Task[None]] = {}
        self._stop_listening = self.data.listen(self._see)

    # -- called by brokers

    def say(self, what: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time() - 1000:9.4f}  {what}")

    def check(self, condition: bool, what: str) -> None:
        if not condition:
            self.say(f"FAILED: {what}")
            self.error = self.error or AssertionError(what)

    def next_record(self) -> Record:
        self.records += 1
        return self.records

    def opened(self, broker: Broker, slot: int, found: set[Record], ownership_epoch: int) -> object:
        missing = self.all_confirmed.get(slot, set()) - found
        broker.say(f"opens slot {slot} in ownership epoch {ownership_epoch}")
        self.check(
            not missing, f"{broker.incarnation} opens slot {slot} without {sorted(missing)}, which were confirmed"
        )
        record = self.topics[slot]
        record.version, record.ownership_epoch, record.opening = record.version + 1, ownership_epoch, object()
        return record.opening

    def confirmed(self, broker: Broker, slot: int, opening: object, record: Record) -> None:
        is_owner = self.topics[slot].opening is opening
        self.check(is_owner, f"{broker.incarnation} confirms {record} for slot {slot} that another has opened")
        self.all_confirmed.setdefault(slot, set()).add(record)

    def count_confirmed(self) -> int:
        return sum(map(len, self.all_confirmed.values()))

    # -- the table, as written

    def _see(self, changes: object) -> None:
        assert isinstance(changes, list | tuple)
        for change in changes:
            assert isinstance(change, Change)
            found = self.data.get(SLOTS_KEY) if change.key == SLOTS_KEY else None
            if found is not None:
                self._check_step(self.table, decode_table(found.value))

    def _check_step(self, old: Table, new: Table) -> None:
        self.writes += 1
        self.check(new.serial == old.serial + 1, f"serial went from {old.serial} to {new.serial}")
        self.check(new.term >= old.term, f"term went from {old.term} to {new.term}")
        changed = [n for n in range(SLOTS) if old.slots[n].holder != new.slots[n].holder]
        for number, (before, after) in enumerate(zip(old.slots, new.slots, strict=True)):
            if after.epoch != before.epoch + (before.holder != after.holder):
                self.check(False, f"slot {number}: {before} became {after}")
            # by the holder to the next holder, or after its incarnation was declared dead or replaced
            was = before.holder
            if was is not None and was != after.holder and after.holder != before.next_holder and not new.is_over(was):
                self.check(False, f"slot {number} was taken from {was}, who was not over")
        self.moves += len(changed)
        dead = ", ".join(sorted(map(str, new.dead)))
        planned = sum(slot.next_holder is not None for slot in new.slots)
        self.say(
            f"table {new.serial} (term {new.term}): {len(changed)} changed, {planned} planned, dead: {dead or '-'}"
        )
        self.table = new

    # -- lives

    def start(self, name: str) -> None:
        self._runs[name] = asyncio.get_running_loop().create_task(self._keep_alive(name))

    async def _keep_alive(self, name: str) -> None:
        """A supervisor: a broker that ends is started again after a moment."""
        while True:
            broker = self.lives[name] = Broker(self, name)
            life = self._current[name] = asyncio.get_running_loop().create_task(broker.live())
            await asyncio.wait([life])
            if not life.cancelled() and (error := life.exception()) is not None:
                if not isinstance(error, Error | TimeoutError):
                    self.check(False, f"{name} failed: {error!r}")
                    self.error = error
                broker.say(f"failed: {error!r}")
                broker.store.crash()
            await asyncio.sleep(0.05 + self.chance.random() * (0.3 if self.is_calm else 2.0))

    async def kill(self, broker: Broker) -> None:
        """Nothing is said to anybody; what was sent is under way; the lock goes with the process."""
        broker.say("is killed")
        broker.is_dead = True
        broker.store.crash()
        directory = self.volume.directory(broker.name)
        if directory.lock is broker:
            directory.lock = None
        life = self._current[broker.name]
        broker.clock.go_on()
        life.cancel()
        await asyncio.wait([life])

    async def chaos(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and self.error is None:
            await asyncio.sleep(self.chance.random() * 1.2)
            living = [broker for broker in self.lives.values() if not broker.is_dead]
            if living:
                await self._happen(self.chance.choice(living))

    async def _happen(self, broker: Broker) -> None:
        match self.chance.randrange(12):
            case 0 | 1 | 2:
                if broker.clock.is_stopped:
                    broker.say("goes on")
                    broker.clock.go_on()
                else:
                    broker.say("is stopped")
                    broker.clock.stop()
            case 3 | 4:
                broker.say("is connected again" if broker.is_cut else "is cut off")
                broker.is_cut = not broker.is_cut
                (broker.store.cut if broker.is_cut else broker.store.heal)()
            case 5:
                broker.faults.is_mute = not broker.faults.is_mute
                broker.say(f"its signs of life {'get lost' if broker.faults.is_mute else 'arrive again'}")
            case 6:
                lease = broker.cluster and broker.cluster._keeper.lease
                if lease and not lease.session.is_lost:
                    broker.say("its session is ended by the store")
                    broker.store.expire(lease.session)
            case 7 | 8:
                await self.kill(broker)
            case 9:
                broker.say("is to leave")
                broker.is_leaving = True
                broker.over.set()
            case _:
                pass

    def calm(self) -> None:
        """From here on nothing fails any more."""
        self.say("all is well again")
        self.is_calm = True
        self.trouble = 0.0
        for broker in self.lives.values():
            broker.faults.trouble, broker.faults.is_mute = 0.0, False
            if broker.is_cut and not broker.is_dead:
                broker.store.heal()
            broker.is_cut = False
            broker.clock.go_on()

    # -- the end

    def unserved(self) -> str | None:
        """Why not everything is served; None: it is."""
        if any(broker.is_dead or broker.over.is_set() for broker in self.lives.values()):
            return "a broker is leaving or not back yet"
        count = dict.fromkeys(range(SLOTS), 0)
        for broker in self.lives.values():
            if broker.cluster is None:
                continue
            for slot in broker.cluster.serving if broker.cluster.is_valid and broker.is_fence_held else ():
                count[slot] += 1
        wrong = [f"{n} by {c}" for n, c in count.items() if c != 1]
        if wrong:
            return f"{len(wrong)} slots are served by none or several: {', '.join(wrong[:5])}"
        planned = sum(slot.next_holder is not None for slot in self.table.slots)
        if planned or self.table.dead:
            return f"{planned} moves planned, dead: {self.table.dead}"
        sizes = [len(self.table.held_by(broker.incarnation)) for broker in self.lives.values()]
        return None if max(sizes) - min(sizes) <= 1 else f"out of balance: {sizes}"

    async def settle(self) -> float:
        """How long it took until everything was served; an error when it takes too long."""
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(SESSION_MS / 1000)  # what was silent before the calm may still be declared dead
        while (why := self.unserved()) is not None:
            took = asyncio.get_running_loop().time() - begun
            if took > SETTLE_SECONDS or self.error is not None:
                self.check(False, f"after {took:.1f} s of calm: {why}")
                return took
            await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time() - begun

    async def open_everything(self) -> None:
        """The holder of each slot opens it: everything confirmed is there."""
        for broker in self.lives.values():
            assert broker.cluster is not None
            for slot in sorted(broker.cluster.serving & self.busy):
                self.check(await broker.open(slot) is not None, f"{broker.incarnation} cannot open slot {slot}")

    async def end(self) -> None:
        """Everybody leaves, in good order when all is well."""
        for run in self._runs.values():
            run.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        for broker in self.lives.values():
            broker.is_leaving = True
            broker.over.set()
            broker.clock.go_on()
        lives = list(self._current.values())
        done, late = await asyncio.wait(lives, timeout=60) if lives else (set(), set())
        for life in late:
            life.cancel()
        if late:
            await asyncio.wait(late)
        for life in done:
            if not life.cancelled() and (error := life.exception()) is not None:
                self.error = self.error or error
        self._stop_listening()
        await asyncio.sleep(SESSION_MS / 1000 + 1)  # what was killed is forgotten by the store after its time
        if self.error is None:
            self._check_end(bool(late))

    def _check_end(self, is_late: bool) -> None:
        self.check(not is_late, "some brokers did not end")
        self.check(not self.data.keys("/cluster/brokers"), f"registered: {self.data.keys('/cluster/brokers')}")
        self.check(not self.data._leases, f"sessions left: {list(self.data._leases)}")
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        self.check(not left, f"tasks left: {left}")
