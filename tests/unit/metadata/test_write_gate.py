"""The write gate: which writes wait or pass, and what closing waits for. Simulated time, memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.metadata.interface import ABSENT, ANY, KeyMissing, MetadataStore, Versioned
from anabranch.metadata.memory.faults import Fate, Kind, Script
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.open import open_store
from anabranch.metadata.write_gate import GatedStore, MetadataReadOnly, WriteGate
from anabranch.model.errors import Busy
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

Write = Callable[[MetadataStore], Awaitable[object]]
ITEM = ("/b", Versioned(b"", 1, 1, 1, False))


async def put_ephemeral(store: MetadataStore) -> None:
    session = await store.open_session(60_000)
    await store.put("/e", b"", expected=ANY, session=session)


WRITES: dict[str, Write] = {
    "put": lambda store: store.put("/a", b"", expected=ANY),
    "ephemeral put": put_ephemeral,
    "delete": lambda store: store.delete("/old", expected=ANY),
    "bulk write": lambda store: store.bulk_write([ITEM], preserve=False),
    "bulk delete": lambda store: store.bulk_delete(["/old"]),
    "raise versions": lambda store: store.raise_versions(1000),
}


def slow_puts(seconds: float, count: int = 1) -> GatedStore:
    script = Script().then(Kind.PUT, *[Fate(request_s=seconds)] * count)
    return GatedStore(MemoryStore(LoopClock(), faults=script), WriteGate(wait_ms_max=5_000))


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("name", WRITES)
def test_writes_wait_while_the_gate_is_closed(name: str) -> None:
    async def check() -> None:
        async with GatedStore(MemoryStore(LoopClock())) as store:
            if name not in ("raise versions", "ephemeral put"):
                await store.put("/old", b"", expected=ABSENT)
            await store.gate.close()
            before = [key async for key, _ in store.scan("/")]
            write = asyncio.ensure_future(WRITES[name](store))
            await asyncio.sleep(5)
            assert not write.done()
            assert [key async for key, _ in store.scan("/")] == before
            store.gate.open()
            await write
            assert store.gate.writes == 0

    run_simulated(check())


def test_reads_sessions_and_watches_pass_a_closed_gate() -> None:
    async def check() -> None:
        async with GatedStore(MemoryStore(LoopClock())) as store:
            await store.put("/a", b"", expected=ABSENT)
            await store.gate.close()
            assert await store.get("/a") is not None
            assert await store.children("/") == ["a"]
            assert [page async for page in store.bulk_scan("/")] != []
            watch = store.watch("/")
            await store.sync()
            session = await store.open_session(1_000)
            await store.inner.put("/b", b"", expected=ABSENT, session=session)
            assert (await anext(watch)).key == "/b"
            await session.close()

    run_simulated(check())


def test_write_waiting_too_long_gets_a_retryable_error() -> None:
    async def check() -> None:
        store = slow_puts(0)
        async with store:
            await store.gate.close()
            start = now()
            with pytest.raises(MetadataReadOnly) as caught:
                await store.put("/a", b"", expected=ABSENT)
            assert now() - start == pytest.approx(5)
            assert (caught.value.code, caught.value.retryable) == ("metadata-read-only", True)
            assert await store.get("/a") is None

    run_simulated(check())


def test_closing_waits_for_pending_writes() -> None:
    async def check() -> None:
        async with slow_puts(2.0, 2) as store:
            writes = [asyncio.ensure_future(store.put(f"/{i}", b"", expected=ABSENT)) for i in range(2)]
            await asyncio.sleep(0.5)
            start = now()
            await store.gate.close()
            assert now() - start == pytest.approx(1.5)
            assert await store.children("/") == ["0", "1"]
            await asyncio.gather(*writes)

    run_simulated(check())


def test_closing_gives_up_in_time_and_opens_again() -> None:
    async def check() -> None:
        async with slow_puts(60.0) as store:
            write = asyncio.ensure_future(store.put("/a", b"", expected=ABSENT))
            await asyncio.sleep(0.5)
            with pytest.raises(Busy, match="1 metadata writes"):
                await store.gate.close(wait_ms_max=1_000)
            assert store.gate.is_open
            await store.put("/b", b"", expected=ABSENT)
            await write
            await store.gate.close()
            with pytest.raises(Busy, match="already"):
                await store.gate.close()

    run_simulated(check())


def test_an_operation_keeps_its_one_permit_while_the_gate_closes() -> None:
    async def check() -> None:
        async with slow_puts(1.0, 4) as store:

            async def operation() -> None:
                async with store.gate.permit():
                    await store.put("/1", b"", expected=ABSENT)
                    async with store.gate.permit():
                        await store.put("/2", b"", expected=ABSENT)
                    await asyncio.gather(*(store.put(f"/{i}", b"", expected=ABSENT) for i in (3, 4)))
                    assert store.gate.writes == 1

            running = asyncio.ensure_future(operation())
            await asyncio.sleep(0.5)
            start = now()
            await store.gate.close()
            assert now() - start == pytest.approx(2.5)
            assert running.done() or await store.children("/") == ["1", "2", "3", "4"]
            await running

    run_simulated(check())


def test_task_outliving_its_operation_has_no_permit() -> None:
    async def check() -> None:
        async with slow_puts(1.0) as store:
            go = asyncio.Event()

            async def later() -> None:
                await go.wait()
                await store.put("/late", b"", expected=ABSENT)

            async with store.gate.permit():
                task = asyncio.ensure_future(later())
                await asyncio.sleep(0)
            await store.gate.close()
            go.set()
            await asyncio.sleep(3)  # longer than the put itself takes
            assert not task.done()
            store.gate.open()
            await task

    run_simulated(check())


def test_pending_write_of_child_task_keeps_the_permit() -> None:
    async def check() -> None:
        async with slow_puts(3.0) as store:
            async with store.gate.permit():
                write = asyncio.ensure_future(store.put("/a", b"", expected=ABSENT))
                await asyncio.sleep(1)
            start = now()
            await store.gate.close()
            assert now() - start == pytest.approx(2)
            await write

    run_simulated(check())


def test_failed_and_cancelled_writes_give_their_permit_back() -> None:
    async def check() -> None:
        async with slow_puts(60.0) as store:
            with pytest.raises(KeyMissing):
                await store.delete("/nothing", expected=ANY)
            write = asyncio.ensure_future(store.put("/a", b"", expected=ABSENT))
            await asyncio.sleep(0.1)
            write.cancel()
            await asyncio.gather(write, return_exceptions=True)
            assert store.gate.writes == 0
            await store.gate.close(wait_ms_max=1)
            waiting = asyncio.ensure_future(store.put("/a", b"", expected=ABSENT))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert store.gate.writes == 0

    run_simulated(check())


def test_permit_of_one_gate_does_not_open_another() -> None:
    async def check() -> None:
        one, two = slow_puts(0), slow_puts(0)
        async with one, two:
            await two.gate.close()
            async with one.gate.permit():
                with pytest.raises(MetadataReadOnly):
                    await two.put("/a", b"", expected=ABSENT)
                two.gate.open()
                async with two.gate.permit():
                    await one.put("/a", b"", expected=ABSENT)
                    assert one.gate.writes == 1

    run_simulated(check())


def test_cancelled_close_leaves_the_gate_open() -> None:
    async def check() -> None:
        async with slow_puts(3.0) as store:
            write = asyncio.ensure_future(store.put("/a", b"", expected=ABSENT))
            await asyncio.sleep(1)
            closing = asyncio.ensure_future(store.gate.close())
            await asyncio.sleep(1)
            before = store.gate.is_open
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            assert (before, store.gate.is_open) == (False, True)
            await write

    run_simulated(check())


def test_stores_are_opened_behind_a_gate() -> None:
    assert isinstance(open_store("memory:", LoopClock()), GatedStore)
