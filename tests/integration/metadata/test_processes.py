"""Metadata shared by processes: what remains of a killed or paused one; what a short interruption costs."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from anabranch.metadata.interface import ABSENT, ANY, MetadataStore, SessionEvent
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from tests import services
from tests.services import oxia
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.in_memory.metadata_stores import PATIENCE_S, World, keys_below, params, soon, value_of

pytestmark = pytest.mark.slow
SHARED = params(["sqlite", "zk", "etcd", "oxia"])
SERVED = params(["zk", "etcd", "oxia"])
SLACK_S = 15.0
"""A busy machine may look late; a session with the wrong lifetime is later than that."""


@asynccontextmanager
async def child(world: World, *arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.processes.metadata_session_child", world.url, *arguments, stdout=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def hear(process: Process, word: str) -> list[str]:
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode().split()
    assert line[:1] == [word], line
    return line[1:]


async def wait_gone(store: MetadataStore, prefix: str) -> None:
    async def is_gone() -> bool:
        await store.sync()
        return not await keys_below(store, prefix)

    await soon(is_gone)


@pytest.mark.parametrize("world", SHARED, indirect=True)
async def test_keys_of_a_killed_process_go_in_time(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    clock = SystemClock()
    store = await world.open()
    mine = await store.open_session(20_000)  # more than a busy machine takes for all this
    await store.put("/live/mine", b"", expected=ABSENT, session=mine)
    async with child(world, "live", "theirs", "1000") as process:
        ttl_ms = int((await hear(process, "ready"))[0])
        watch = store.watch("/live")
        await store.sync()
        assert len(await keys_below(store, "/live/theirs")) == 3
        process.send_signal(signal.SIGKILL)
        killed_at = clock.monotonic()
        await wait_gone(store, "/live/theirs")
        gone_s = clock.monotonic() - killed_at
    record_property("gone after SIGKILL", f"{gone_s:.2f} s, granted {ttl_ms} ms")
    assert gone_s <= ttl_ms / 1000 + 0.5 + SLACK_S
    deleted: set[str] = set()
    async with asyncio.timeout(PATIENCE_S):
        while len(deleted) < 3:
            deleted |= {(await anext(watch)).key} & {f"/live/theirs/{number}" for number in range(3)}
    assert not mine.is_lost
    assert await store.children("/live") == ["mine"]


@pytest.mark.parametrize("world", SHARED, indirect=True)
async def test_paused_process_is_notified_of_its_lost_session(world: World) -> None:
    store = await world.open()
    async with child(world, "live", "paused", "1000") as process:
        await hear(process, "ready")
        process.send_signal(signal.SIGSTOP)
        try:
            await wait_gone(store, "/live/paused")
            await store.put("/live/paused/0", b"taken", expected=ABSENT)
        finally:
            process.send_signal(signal.SIGCONT)
        await hear(process, "lost")
    await store.sync()
    assert await keys_below(store, "/live") == ["/live/paused/0"]


@pytest.mark.parametrize("world", SHARED, indirect=True)
async def test_processes_lose_no_increment(world: World) -> None:
    store = await world.open()
    await store.put("/count", b"0", expected=ABSENT)
    async with child(world, "count", "40") as one, child(world, "count", "40") as two:
        await hear(one, "done")
        await hear(two, "done")
    await store.sync()
    assert await value_of(store, "/count") == b"80"


@pytest.mark.parametrize("kind", SERVED)
async def test_session_outlives_a_restart_of_its_server(kind: str, tmp_path: Path) -> None:
    cluster = services.cluster(kind, tmp_path)
    with cluster:
        (node,) = cluster.nodes
        async with open_store(f"{cluster.url}/{'default/' if kind == 'oxia' else ''}place", SystemClock()) as store:
            session = await store.open_session(20_000)
            await store.put("/live/a", b"1", expected=ABSENT, session=session)
            await store.put("/kept", b"1", expected=ABSENT)
            node.kill9()
            await asyncio.to_thread(node.start)

            async def answers() -> bool:
                try:
                    await store.sync()
                    return await value_of(store, "/live/a") == b"1"
                except Exception as error:
                    assert getattr(error, "retryable", False), repr(error)
                    return False

            await soon(answers)
            assert await value_of(store, "/kept") == b"1"
            assert not session.is_lost
            await store.put("/live/a", b"2", expected=ANY, session=session)
            await store.put("/live/b", b"", expected=ABSENT, session=session)
            await session.close()
            assert await keys_below(store, "/") == ["/kept"]


@asynccontextmanager
async def behind_a_proxy(kind: str, folder: Path) -> AsyncIterator[tuple[FaultProxy, str, str]]:
    """The proxy, the URL through it and the direct one."""
    async with AsyncExitStack() as stack:
        if kind != "oxia":
            direct = services.shared(kind).url
            proxy = await stack.enter_async_context(FaultProxy(services.shared(kind).nodes[0].port))
            yield proxy, f"{kind}://127.0.0.1:{proxy.port}/cut", f"{direct}/cut"
            return
        proxies: list[FaultProxy] = []  # an Oxia client goes where the server sends it, so it must send it to the proxy

        def told_port(node: services.Node) -> int:
            proxies.append(FaultProxy(node.port))
            return proxies[-1].port

        cluster = oxia.replicated(folder, 1, advertised_ports=told_port)
        proxy = await stack.enter_async_context(proxies[0])
        await asyncio.to_thread(cluster.start)
        stack.callback(cluster.stop)
        yield proxy, f"oxia://127.0.0.1:{proxy.port}/default/cut", ""


@pytest.mark.parametrize("kind", SERVED)
async def test_session_outlives_a_short_cut_of_the_line(kind: str, tmp_path: Path) -> None:
    services.cluster(kind, tmp_path / "unused")  # or skipped
    async with behind_a_proxy(kind, tmp_path) as (proxy, url, direct), open_store(url, SystemClock()) as store:
        session = await store.open_session(10_000)
        events: list[SessionEvent] = []
        session.listen(events.append)
        await store.put("/live/a", b"", expected=ABSENT, session=session)
        before = session.valid_until
        proxy.refuse()
        if direct:
            async with open_store(direct, SystemClock()) as other:
                assert await value_of(other, "/live/a") == b""
        await proxy.heal()

        async def is_renewed() -> bool:
            return session.valid_until > before

        await soon(is_renewed)
        assert not session.is_lost
        assert SessionEvent.LOST not in events
        assert await value_of(store, "/live/a") == b""
        await store.put("/live/b", b"", expected=ABSENT, session=session)
