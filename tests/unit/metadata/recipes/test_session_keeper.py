"""The state machine of the session keeper, and its leases."""

from __future__ import annotations

import asyncio
import random

import pytest

from anabranch.metadata.interface import ABSENT, SessionEvent, SessionLost
from anabranch.metadata.memory.faults import Fate, Kind, Loss, Script
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.recipes.session_keeper import (
    CheckValidity,
    ConnectionChanged,
    Discard,
    Effect,
    Event,
    GraceEnded,
    KeeperEvent,
    KeeperMachine,
    NotifyConnection,
    NotifyDown,
    NotifyUp,
    Open,
    Opened,
    OpenFailed,
    Pause,
    PauseEnded,
    SessionDown,
    SessionEventReceived,
    SessionKeeper,
    SessionUp,
    Started,
    StartGrace,
    Stopped,
    ValidityChecked,
)
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated


def feed(machine: KeeperMachine, *events: Event) -> list[Effect]:
    effects: list[Effect] = []
    for event in events:
        effects = machine.handle(event)
    return effects


def test_opened_session_is_checked_at_its_end() -> None:
    machine = KeeperMachine()
    assert feed(machine, Started()) == [Open(1)]
    assert feed(machine, Opened(3.0)) == [NotifyUp(1), CheckValidity(1, 3.0)]
    assert feed(machine, ValidityChecked(1, 2.0)) == [CheckValidity(1, 2.0)]


def test_a_lost_session_is_followed_by_another() -> None:
    machine = KeeperMachine()
    feed(machine, Started(), Opened(3.0))
    assert feed(machine, SessionEventReceived(1, SessionEvent.LOST)) == [NotifyDown(1, "lost"), Discard(1), Open(2)]
    assert feed(machine, SessionEventReceived(1, SessionEvent.LOST)) == [], "that one is over already"
    assert feed(machine, Opened(3.0)) == [NotifyUp(2), CheckValidity(2, 3.0)]
    assert feed(machine, ValidityChecked(1, 0.0)) == []


def test_overdue_session_is_lost_whatever_events_follow() -> None:
    machine = KeeperMachine()
    feed(machine, Started(), Opened(3.0))
    assert feed(machine, SessionEventReceived(1, SessionEvent.DISCONNECTED)) == [NotifyConnection(1, False)]
    assert feed(machine, ValidityChecked(1, 0.0)) == [NotifyDown(1, "overdue"), Open(2)]
    assert feed(machine, SessionEventReceived(1, SessionEvent.RECONNECTED)) == []
    assert feed(machine, OpenFailed(), PauseEnded(), Opened(3.0)) == [NotifyUp(3), CheckValidity(3, 3.0), StartGrace(1)]
    assert feed(machine, GraceEnded(1)) == [Discard(1)], "now its users have moved to the next"
    assert feed(machine, GraceEnded(1)) == []


def test_at_most_one_overdue_session_has_a_grace_period() -> None:
    machine = KeeperMachine()
    feed(machine, Started(), Opened(3.0), ValidityChecked(1, 0.0), Opened(3.0))
    assert feed(machine, ValidityChecked(2, 0.0)) == [NotifyDown(2, "overdue"), Discard(1), Open(3)]
    assert feed(machine, SessionEventReceived(2, SessionEvent.LOST)) == [Discard(2)], "nothing is left to move"
    feed(machine, Opened(3.0), ValidityChecked(3, 0.0), Opened(3.0))
    assert feed(machine, Stopped()) == [Discard(3), NotifyDown(4, "closed"), Discard(4)]


def test_failed_requests_are_retried_after_pauses() -> None:
    machine = KeeperMachine()
    assert feed(machine, Started(), OpenFailed()) == [Pause(1)]
    assert feed(machine, PauseEnded(), OpenFailed()) == [Pause(2)]
    assert feed(machine, PauseEnded()) == [Open(3)]
    assert feed(machine, Opened(0.0)) == [Discard(3), Pause(3)], "it was over before we had it"
    assert feed(machine, PauseEnded(), Opened(1.0), SessionEventReceived(4, SessionEvent.LOST), OpenFailed()) == [
        Pause(1)
    ]


def test_ends() -> None:
    machine = KeeperMachine()
    feed(machine, Started(), Opened(3.0))
    assert feed(machine, Stopped()) == [NotifyDown(1, "closed"), Discard(1)]
    machine = KeeperMachine()
    feed(machine, Started(), Stopped())
    assert feed(machine, Opened(3.0)) == [Discard(1)], "what was under way is closed"
    assert feed(machine, PauseEnded()) == []


def keeper_on(store: MemoryStore, ttl_ms: int = 2_000) -> SessionKeeper:
    return SessionKeeper(store, name="me", ttl_ms=ttl_ms, clock=LoopClock(), chance=random.Random(1))


def test_ended_session_deletes_keys_and_notifies_users() -> None:
    async def check() -> None:
        events: list[KeeperEvent] = []
        async with MemoryStore(LoopClock()) as store, keeper_on(store) as keeper:
            keeper.listen(events.append)
            first = await keeper.wait_lease(5)
            await store.put("/mine", b"", expected=ABSENT, session=first.session)
            store.expire(first.session)
            await asyncio.sleep(0)
            second = await keeper.wait_lease(5)
            assert await store.get("/mine") is None
            assert (first.name, second.name) == (f"{keeper.instance}.1", f"{keeper.instance}.2")
            assert events == [SessionUp(first), SessionDown(first, "lost"), SessionUp(second)]
            with pytest.raises(SessionLost):
                first.check()
            second.check()

    run_simulated(check())


def test_overdue_session_stays_lost_after_a_late_answer() -> None:
    async def check() -> None:
        events: list[KeeperEvent] = []
        async with MemoryStore(LoopClock()) as store, keeper_on(store) as keeper:
            lease = await keeper.wait_lease(5)
            keeper.listen(events.append)
            store.cut()
            assert events == [ConnectionChanged(lease, False)]
            lease.check()
            await asyncio.sleep(2.1)
            assert not lease.is_valid
            assert events[1:] == [SessionDown(lease, "overdue")]
            store.heal()
            again = await keeper.wait_lease(5)
            assert not lease.is_valid and again.is_valid

    run_simulated(check())


def test_resumed_process_fails_its_next_lease_check() -> None:
    async def check() -> None:
        async with MemoryStore(LoopClock()) as store, keeper_on(store) as keeper:
            lease = await keeper.wait_lease(5)
            loop = asyncio.get_running_loop()
            loop.jump(10)  # type: ignore[attr-defined]  # no timer has rung yet
            assert not lease.is_valid

    run_simulated(check())


def test_keeper_waits_for_an_unavailable_store() -> None:
    async def check() -> None:
        away = Script().then(Kind.OPEN_SESSION, *[Fate(loss=Loss.REFUSED)] * 3)
        async with MemoryStore(LoopClock(), None, away) as store, keeper_on(store) as keeper:
            assert keeper.lease is None
            assert (await keeper.wait_lease(5)).name == f"{keeper.instance}.4"
            with pytest.raises(TimeoutError):
                await keeper_on(store).wait_lease(1)

    run_simulated(check())


def test_no_two_keepers_have_the_same_instance() -> None:
    chance = random.Random(1)
    store = MemoryStore(LoopClock())
    made = [SessionKeeper(store, name="me", ttl_ms=1, clock=LoopClock(), chance=chance) for _ in range(100)]
    assert len({keeper.instance for keeper in made}) == 100
    assert all(keeper.instance.startswith("me~") for keeper in made)
    assert len({made[0].ticket() for _ in range(10)}) == 10


def test_keeper_name_with_spaces_is_refused() -> None:
    with pytest.raises(ValueError, match="must not contain spaces"):
        SessionKeeper(MemoryStore(LoopClock()), name="a b", ttl_ms=1, clock=LoopClock(), chance=random.Random(1))
