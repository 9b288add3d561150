"""The memory store as a backend with sessions, shared data and faults, under simulated time."""

from __future__ import annotations

import asyncio
import random

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    Change,
    ChangeKind,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    VersionMismatch,
)
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.faults import DrawnFaults, Fate, Faults, Kind, Loss, Script
from anabranch.metadata.memory.store import MemoryStore
from tests.support.in_memory.simulated_loop import LoopClock, SimulatedLoop, run_simulated


def two_stores(faults: Faults | None = None) -> tuple[MemoryStore, MemoryStore]:
    clock = LoopClock()
    data = MemoryData(clock)
    return MemoryStore(clock, data, faults, "one"), MemoryStore(clock, data, None, "two")


Entry = tuple[float, int, object]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_stores_share_keys_versions_and_watches() -> None:
    async def check() -> None:
        one, two = two_stores()
        async with one, two:
            watch = two.watch("/")
            version = await one.put("/a", b"1", expected=ABSENT)
            assert await anext(watch) == Change(ChangeKind.CREATED, "/a")
            await two.put("/a", b"2", expected=version)
            with pytest.raises(VersionMismatch):
                await one.put("/a", b"3", expected=version)
            async with MemoryStore(LoopClock()) as other:
                assert await other.get("/a") is None

    run_simulated(check())


def test_session_ends_one_ttl_after_a_crash() -> None:
    async def check() -> None:
        one, two = two_stores()
        async with one, two:
            session = await one.open_session(3_000)
            await one.put("/live", b"", expected=ABSENT, session=session)
            await asyncio.sleep(100)
            assert now() < session.valid_until <= now() + 3
            assert await two.get("/live") is not None
            watch = two.watch("/live")
            one.crash()
            crashed_at = now()
            assert await anext(watch) == Change(ChangeKind.DELETED, "/live")
            assert 2 <= now() - crashed_at <= 3
            assert session.is_lost

    run_simulated(check())


def test_owner_learns_of_expiry_after_reconnecting() -> None:
    async def check() -> None:
        one, two = two_stores()
        async with one, two:
            session = await one.open_session(3_000)
            events: list[SessionEvent] = []
            session.listen(events.append)
            await one.put("/live", b"", expected=ABSENT, session=session)
            one.cut()
            with pytest.raises(StoreUnavailable):
                await one.get("/live")
            valid_until = session.valid_until
            while await two.get("/live") is not None:
                assert now() < valid_until + 3
                await asyncio.sleep(0.1)
            assert now() >= valid_until, "the data may not end a session that its owner still trusts"
            before = session.is_lost
            one.heal()
            assert (before, session.is_lost) == (False, True)
            assert events == [SessionEvent.DISCONNECTED, SessionEvent.LOST]
            with pytest.raises(SessionLost):
                await one.put("/live", b"", expected=ABSENT, session=session)
            assert await two.get("/live") is None

    run_simulated(check())


def test_short_interruption_keeps_session_and_invalidates_watches() -> None:
    async def check() -> None:
        one, two = two_stores()
        async with one, two:
            session = await one.open_session(3_000)
            events: list[SessionEvent] = []
            stop = session.listen(events.append)
            watch = one.watch("/t")
            one.cut()
            await two.put("/t/a", b"", expected=ABSENT)
            await asyncio.sleep(1.5)
            one.heal()
            assert await anext(watch) == Change(ChangeKind.INVALIDATED, "/t")
            assert events == [SessionEvent.DISCONNECTED, SessionEvent.RECONNECTED]
            stop()
            await asyncio.sleep(10)
            before = session.is_lost
            one.expire(session)
            assert (before, session.is_lost, len(events)) == (False, True, 2)

    run_simulated(check())


def test_error_depends_on_what_was_lost() -> None:
    async def check() -> None:
        script = Script().then(
            Kind.PUT, Fate(loss=Loss.REFUSED), Fate(loss=Loss.REQUEST), Fate(loss=Loss.ANSWER), Fate(loss=Loss.ANSWER)
        )
        one, two = two_stores(script.then(Kind.GET, Fate(loss=Loss.ANSWER)))
        async with one, two:
            with pytest.raises(StoreUnavailable) as refused:
                await one.put("/a", b"", expected=ABSENT)
            assert not isinstance(refused.value, OutcomeUnknown)
            with pytest.raises(OutcomeUnknown):
                await one.put("/a", b"", expected=ABSENT)
            assert await two.get("/a") is None
            with pytest.raises(OutcomeUnknown):
                await one.put("/a", b"1", expected=ABSENT)
            found = await two.get("/a")
            assert found is not None and found.value == b"1"
            with pytest.raises(OutcomeUnknown):  # the refusal got lost
                await one.put("/a", b"2", expected=ABSENT)
            with pytest.raises(StoreUnavailable):
                await one.get("/a")
            assert await one.get("/a") == found

    run_simulated(check())


def test_delays_of_requests_answers_and_events() -> None:
    async def check() -> None:
        script = Script().then(Kind.PUT, Fate(request_s=1.0, answer_s=2.0)).then(Kind.EVENT, Fate(request_s=5.0))
        one, two = two_stores(script)
        async with one, two:
            mine, other = one.watch("/"), two.watch("/")
            start = now()
            put = asyncio.ensure_future(one.put("/a", b"", expected=ABSENT))
            await anext(other)
            assert now() == pytest.approx(start + 1)
            await put
            assert now() == pytest.approx(start + 3)
            await two.put("/b", b"", expected=ABSENT)
            assert [(await anext(mine)).key, now() - start] == ["/a", pytest.approx(6)]
            assert [(await anext(mine)).key, now() - start] == ["/b", pytest.approx(6)]

    run_simulated(check())


def test_lost_keep_alives_end_the_session() -> None:
    async def check() -> None:
        script = Script().then(Kind.KEEP_ALIVE, *[Fate(request_s=0.9, answer_s=0.9)], *[Fate(loss=Loss.REQUEST)] * 9)
        one, two = two_stores(script)
        async with one, two:
            start = now()
            session = await one.open_session(3_000)
            await one.put("/live", b"", expected=ABSENT, session=session)
            await asyncio.sleep(2.9)
            assert session.valid_until == pytest.approx(start + 1 + 3), "counted from when it was sent"
            watch = two.watch("/")
            await anext(watch)
            assert now() == pytest.approx(start + 1.9 + 3), "the data counts from when it arrived"
            with pytest.raises(SessionLost):
                await one.put("/live", b"", expected=ABSENT, session=session)
            assert session.is_lost

    run_simulated(check())


def test_overdue_session_is_lost_before_its_timer_fires() -> None:
    async def check() -> None:
        one, two = two_stores()
        async with one, two:
            session = await one.open_session(1_000)
            await one.put("/live", b"", expected=ABSENT, session=session)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.jump(60)
            assert await two.get("/live") is None
            with pytest.raises(SessionLost):
                await one.put("/live", b"", expected=ANY, session=session)

    run_simulated(check())


async def busy(seed: int) -> list[Entry]:
    """Three stores under random faults: everything that happened, in order."""
    chance, clock = random.Random(seed), LoopClock()
    fates = [Fate()] * 6 + [Fate(request_s=0.4), Fate(answer_s=2.5), *(Fate(loss=loss) for loss in Loss)]
    data, history = MemoryData(clock), list[Entry]()

    async def work(number: int) -> None:
        store = MemoryStore(clock, data, DrawnFaults(lambda: chance.choice(fates)), str(number))
        async with store:
            session = None
            for step in range(60):
                await asyncio.sleep(chance.random())
                try:
                    if session is None or session.is_lost:
                        session = await store.open_session(2_000)
                    if step % 20 == 19:
                        store.cut()
                    elif step % 20 == 4:
                        store.heal()
                    key = f"/k/{chance.randrange(3)}"
                    history.append((now(), number, await store.put(key, b"", expected=ANY, session=session)))
                except (StoreUnavailable, SessionLost) as error:
                    history.append((now(), number, error.code))

    await asyncio.gather(*map(work, range(3)))
    await asyncio.sleep(10)
    async with MemoryStore(clock, data) as store:
        assert await store.children("/k") == []
    return history


@pytest.mark.parametrize("seed", range(5))
def test_same_seed_gives_the_same_run(seed: int) -> None:
    first, second = run_simulated(busy(seed)), run_simulated(busy(seed))
    assert first == second
    assert {"metadata-unavailable", "metadata-outcome-unknown"} <= {entry[2] for entry in first}


def test_the_simulated_loop_notices_a_deadlock() -> None:
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="deadlock"):
        run_simulated(stuck())
