"""The ZooKeeper store beyond the contract, on a real server: sessions, restarting servers, what other clients see.

The contract of all stores is in `contract/`, histories under faults in `test_faults.py`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    Change,
    ChangeKind,
    OutcomeUnknown,
    SessionEvent,
    StoreUnavailable,
    VersionMismatch,
)
from anabranch.metadata.zookeeper.address import parse_url
from anabranch.metadata.zookeeper.paths import DEPTH_MAX
from anabranch.metadata.zookeeper.store import ZooKeeperStore
from anabranch.runtime.clock import Clock, SystemClock, Timer
from anabranch.zookeeper import jute
from anabranch.zookeeper.address import Server
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.errors import RequestTooLarge
from tests import services
from tests.support.faults.fault_proxy import FaultProxy, Flow
from tests.support.in_memory.metadata_stores import (
    PATIENCE_S,
    changes_until,
    fresh_url,
    keys_below,
    kinds_of,
    must_get,
    soon,
    value_of,
)

pytestmark = pytest.mark.xdist_group("zk")
HOST = "127.0.0.1"
CREATED, MODIFIED, DELETED, INVALIDATED = ChangeKind


def make(url: str, clock: Clock | None = None, request_s: float = 10.0) -> ZooKeeperStore:
    return ZooKeeperStore(*parse_url(url.removeprefix("zk:")), clock or SystemClock(), request_s=request_s)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return fresh_url("zk", tmp_path)


def through(proxy: FaultProxy, url: str) -> str:
    return f"zk://{HOST}:{proxy.port}/{url.rpartition('/')[2]}"


def port_of(url: str) -> int:
    return parse_url(url.removeprefix("zk:"))[0][0].port


async def with_kazoo(url: str, work: Callable[[KazooClient], object]) -> object:
    """What another client sees, below the same chroot."""

    def run() -> object:
        client = KazooClient(url.removeprefix("zk://"))
        client.start(timeout=30)
        try:
            return work(client)
        finally:
            client.stop()
            client.close()

    return await asyncio.to_thread(run)


class StoppableClock(SystemClock):
    """While stopped, no timer fires: like SIGSTOP, as seen by the server."""

    def __init__(self) -> None:
        self._runs = asyncio.Event()
        self._runs.set()
        self._held: list[Callable[[], None]] = []

    def stop(self) -> None:
        self._runs.clear()

    def go_on(self) -> None:
        self._runs.set()
        held, self._held = self._held, []
        for callback in held:
            callback()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self._runs.wait()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(seconds, lambda: callback() if self._runs.is_set() else self._held.append(callback))


# Sessions -------------------------------------------------------------------------------------------------------------


async def test_session_without_pings_expires_and_is_notified(url: str) -> None:
    clock = StoppableClock()
    async with make(url, clock) as store, make(url) as other:
        session = await store.open_session(1000)
        events: list[SessionEvent] = []
        session.listen(events.append)
        await store.put("/held", b"", expected=ABSENT, session=session)
        clock.stop()

        async def is_gone() -> bool:
            await other.sync()
            return await other.get("/held") is None

        await soon(is_gone)
        assert session.valid_until <= clock.monotonic(), "its holder was still sure of it"
        clock.go_on()
        await asyncio.wait_for(session.wait_lost(), PATIENCE_S)
        assert events == [SessionEvent.DISCONNECTED, SessionEvent.LOST]
        again = await store.open_session(1000)
        await store.put("/held", b"", expected=ABSENT, session=again)


async def test_store_with_expired_session_continues_and_invalidates_watches(url: str) -> None:
    clock = StoppableClock()
    servers, chroot = parse_url(url.removeprefix("zk:"))
    store = ZooKeeperStore(servers, chroot, clock, timeout_ms=1000)
    async with store, make(url) as other:
        watch = store.watch("/")
        clock.stop()
        first = await asyncio.wait_for(anext(watch), PATIENCE_S)
        clock.go_on()
        assert first == Change(INVALIDATED, "/")
        await other.put("/a", b"1", expected=ABSENT)
        assert await kinds_of(watch, "/a", 1) == [CREATED]
        assert await store.put("/a", b"2", expected=ANY) == 1


async def test_cut_connection_keeps_session_and_keys(url: str) -> None:
    async with FaultProxy(port_of(url)) as proxy, make(through(proxy, url)) as store, make(url) as other:
        session = await store.open_session(10_000)
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        session.listen(events.put_nowait)
        version = await store.put("/held", b"1", expected=ABSENT, session=session)
        for _ in range(3):
            proxy.cut()
            assert await asyncio.wait_for(events.get(), PATIENCE_S) is SessionEvent.DISCONNECTED
            assert await asyncio.wait_for(events.get(), PATIENCE_S) is SessionEvent.RECONNECTED
            found = await must_get(other, "/held")
            assert found.ephemeral and found.version == version
            version = await store.put("/held", b"1", expected=version, session=session)
        await session.close()
        assert events.get_nowait() is SessionEvent.LOST
        await other.sync()
        assert await other.get("/held") is None


async def test_closed_session_is_valid_no_longer(url: str) -> None:
    async with make(url) as store:
        session = await store.open_session(10_000)
        assert session.valid_until > SystemClock().monotonic()
        await session.close()
        assert session.valid_until <= SystemClock().monotonic()


async def test_close_lets_writes_finish_that_have_begun(url: str) -> None:
    store = make(url)
    await store.open()
    session = await store.open_session(10_000)
    writes = [asyncio.create_task(store.put(f"/n/{i}", b"", expected=ANY)) for i in range(200)]
    writes += [asyncio.create_task(store.put(f"/e/{i}", b"", expected=ANY, session=session)) for i in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert [type(result) for result in await asyncio.gather(*writes, return_exceptions=True)] == [int] * 220
    async with make(url) as again:
        assert len(await again.children("/n")) == 200
        assert await again.children("/e") == []


async def test_session_without_contact_counts_as_lost(url: str) -> None:
    async with FaultProxy(port_of(url)) as proxy, make(through(proxy, url), request_s=3) as store:
        session = await store.open_session(1000)
        proxy.refuse()
        await asyncio.wait_for(session.wait_lost(), PATIENCE_S)
        assert session.valid_until < SystemClock().monotonic()


async def test_change_of_session_is_one_modification(url: str) -> None:
    async with make(url) as store:
        watch = store.watch("/")
        one, two = await store.open_session(5000), await store.open_session(5000)
        versions = [await store.put("/a", b"", expected=ABSENT)]
        for number in range(20):
            versions.append(await store.put("/a", b"", expected=versions[-1], session=(one, two, None)[number % 3]))
        assert len(set(versions)) == len(versions)
        await store.put("/end", b"", expected=ABSENT)
        seen = await changes_until(watch, lambda seen: bool(seen) and seen[-1].key == "/end")
        assert [change.kind for change in seen[:-1]] == [CREATED] + [MODIFIED] * 20


async def test_key_with_high_version_changes_its_session(url: str) -> None:
    async with make(url) as store:
        version = await store.put("/a", b"", expected=ABSENT)
        for start in range(0, 2500, 500):
            parts = [jute.part(jute.Op.SET_DATA, jute.set_body(store._keys.path("/a"), b"", -1))] * 500
            await store._opened().call(jute.multi(parts), store._opened().deadline())
            assert (await must_get(store, "/a")).version == start + 500
        session = await store.open_session(5000)
        version = await store.put("/a", b"mine", expected=2500, session=session)
        assert version not in (0, 2500)
        found = await must_get(store, "/a")
        assert (found.value, found.version, found.ephemeral) == (b"mine", version, True)


# The line to the server -----------------------------------------------------------------------------------------------


async def test_write_whose_answer_is_lost_is_of_unknown_outcome_and_never_repeated(url: str) -> None:
    async with FaultProxy(port_of(url)) as proxy, make(through(proxy, url), request_s=5) as store, make(url) as other:
        version = await store.put("/a", b"0", expected=ABSENT)
        version = await store.put("/a", b"0", expected=version)  # known well: the next is sent without a look
        proxy.down.flow = Flow.LOSE
        writing = asyncio.create_task(store.put("/a", b"1", expected=ANY))

        async def is_applied() -> bool:
            await other.sync()
            return (await must_get(other, "/a")).version != version

        await soon(is_applied)
        proxy.cut()  # the answer may still be on its way to the proxy: it must not arrive after all
        await proxy.heal()
        with pytest.raises(OutcomeUnknown):
            await writing
        assert (await must_get(store, "/a")).version == version + 1


async def test_reads_are_repeated_after_a_cut(url: str) -> None:
    async with FaultProxy(port_of(url)) as proxy, make(through(proxy, url)) as store:
        await store.put("/a", b"1", expected=ABSENT)
        proxy.down.flow = Flow.LOSE
        reading = [asyncio.create_task(value_of(store, "/a")) for _ in range(50)]
        await asyncio.sleep(0.05)
        await proxy.heal()
        assert await asyncio.gather(*reading) == [b"1"] * 50


async def test_operations_end_in_time_while_no_server_answers(url: str) -> None:
    async with FaultProxy(port_of(url)) as proxy, make(through(proxy, url), request_s=0.5) as store:
        proxy.black_hole(Flow.HOLD)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(OutcomeUnknown):
                await store.put("/a", b"", expected=ABSENT)
            with pytest.raises(StoreUnavailable) as caught:
                await store.get("/a")
            assert not isinstance(caught.value, OutcomeUnknown)
        await proxy.heal()


async def test_watch_is_invalidated_and_continues_after_a_cut(url: str) -> None:
    async with FaultProxy(port_of(url)) as proxy, make(through(proxy, url)) as store, make(url) as other:
        watch = store.watch("/w")
        await other.put("/w/a", b"1", expected=ABSENT)
        assert await kinds_of(watch, "/w/a", 1) == [CREATED]
        proxy.refuse()
        await other.put("/w/missed", b"1", expected=ABSENT)
        await proxy.accept()
        assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(INVALIDATED, "/w")
        assert sorted(await keys_below(store, "/w")) == ["/w/a", "/w/missed"]
        await other.put("/w/a", b"2", expected=ANY)
        assert await kinds_of(watch, "/w/a", 1) == [MODIFIED]


async def test_too_large_request_is_refused_and_the_line_goes_on(url: str) -> None:
    servers, _ = parse_url(url.removeprefix("zk:"))
    line = Connection(servers, SystemClock(), timeout_ms=5000, request_s=5, renew_expired=True)
    await line.open(line.deadline())
    with pytest.raises(RequestTooLarge):
        await line.call(jute.set_data("/a", bytes(jute.REQUEST_BYTES_MAX), -1), line.deadline())
    assert jute.children_of((await line.call(jute.get_children("/"), line.deadline())).body)
    await line.close()


async def test_thousands_of_requests_at_once_keep_to_the_bound(url: str) -> None:
    async with make(url, request_s=60) as store:
        await asyncio.gather(*(store.put(f"/n/{i}", b"x" * 1000, expected=ABSENT) for i in range(5000)))
        values = await asyncio.gather(*(value_of(store, f"/n/{i}") for i in range(5000)))
        assert values == [b"x" * 1000] * 5000


# Servers that come and go ---------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_restarted_server(tmp_path: Path) -> None:
    cluster = services.cluster("zk", tmp_path)
    try:
        await asyncio.to_thread(cluster.start)
        async with make(f"{cluster.url}/r", request_s=30) as store:
            session = await store.open_session(20_000)
            watch = store.watch("/")
            await store.put("/live", b"", expected=ABSENT, session=session)
            version = await store.put("/a", b"1", expected=ABSENT)
            await asyncio.to_thread(cluster.nodes[0].kill9)
            await asyncio.to_thread(cluster.nodes[0].start)
            await changes_until(watch, lambda seen: Change(INVALIDATED, "/") in seen)
            version = await store.put("/a", b"2", expected=version)
            await store.put("/live", b"2", expected=ANY, session=session)
            assert not session.is_lost
            assert await kinds_of(watch, "/a", 1) == [MODIFIED]
    finally:
        await asyncio.to_thread(cluster.stop)


@pytest.mark.slow
async def test_ensemble_that_loses_its_leader(tmp_path: Path) -> None:
    """Reads, writes, sessions and watches continue."""
    cluster = services.cluster("zk", tmp_path, size=3)
    try:
        await asyncio.to_thread(cluster.start)
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(make(f"{cluster.url}/e", request_s=30)) for _ in range(3)]
            sessions = [await store.open_session(20_000) for store in stores]
            watches = [store.watch("/") for store in stores]
            for number, (store, session) in enumerate(zip(stores, sessions, strict=True)):
                await store.put(f"/live/{number}", b"", expected=ABSENT, session=session)
            leader = await asyncio.to_thread(cluster.leader)
            await asyncio.to_thread(leader.kill9)
            for number, store in enumerate(stores):
                await insist(partial(store.put, f"/after/{number}", b"", expected=ANY))
            await stores[0].sync()
            assert await stores[0].children("/live") == ["0", "1", "2"]
            assert await stores[0].children("/after") == ["0", "1", "2"]
            assert [session.is_lost for session in sessions] == [False] * 3
            await stores[0].put("/end", b"", expected=ANY)
            for watch in watches:
                await changes_until(watch, lambda seen: bool(seen) and seen[-1].key == "/end")
    finally:
        await asyncio.to_thread(cluster.stop)


@pytest.mark.slow
async def test_own_writes_are_read_from_a_lagging_server(tmp_path: Path) -> None:
    """The session writes at the leader while the follower that serves the reads is stopped."""
    cluster = services.cluster("zk", tmp_path, size=3)
    try:
        await asyncio.to_thread(cluster.start)
        leader = await asyncio.to_thread(cluster.leader)
        follower = next(node for node in cluster.nodes if node is not leader)
        async with make(f"zk://{follower.address}/own", request_s=30) as store:
            store._servers = [Server(HOST, leader.port)]
            session = await store.open_session(20_000)
            for number in range(10):
                await store.put("/a", b"old", expected=ANY, session=session)
                assert await value_of(store, "/a") == b"old"
                follower.pause()
                await store.put("/a", b"%d" % number, expected=ANY, session=session)
                reading = asyncio.create_task(value_of(store, "/a"))
                listing = asyncio.create_task(keys_below(store, "/"))
                await asyncio.sleep(0.02)  # the requests are at the server before what it missed
                follower.resume()
                assert await reading == b"%d" % number
                assert await listing == ["/a"]
    finally:
        await asyncio.to_thread(cluster.stop)


async def insist(work: Callable[[], Awaitable[object]]) -> None:
    async def is_done() -> bool:
        try:
            await work()
        except StoreUnavailable:
            return False
        return True

    await soon(is_done)


@asynccontextmanager
async def server_that_says(*answers: bytes) -> AsyncIterator[str]:
    """A server that answers each received chunk with the next of the given answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            if not await reader.read(65536):
                break
            writer.write(answer)
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield f"zk://{HOST}:{server.sockets[0].getsockname()[1]}/x"


SHAKEN = struct.pack(">iiiq", 37, 0, 5000, 1) + jute.blob(b"p" * 16) + b"\0"


@pytest.mark.parametrize(
    "answers",
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
        (b"\xff" * 100,),
        (b"\0\0\0\2ab",),
        (b"\0\0\0\x10" + b"\xff" * 16,),
        (SHAKEN, b"\0\0\0\1x"),
        (SHAKEN, struct.pack(">iiqi", 16, 77, 0, 0)),
        (SHAKEN, struct.pack(">iiqi", 16, -1, 0, 0)),
        (SHAKEN, struct.pack(">i", -5)),
        (b"",),
    ],
)
async def test_garbage_from_the_server_is_a_typed_error(answers: tuple[bytes, ...]) -> None:
    async with server_that_says(*answers) as url, asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable):
            await make(url, request_s=0.5).open()


async def test_nobody_there() -> None:
    with pytest.raises(StoreUnavailable, match="no ZooKeeper server"):
        await make(f"zk://{HOST}:1", request_s=0.3).open()
    with pytest.raises(StoreUnavailable):
        await make("zk://does-not-exist.invalid", request_s=0.3).open()
    with pytest.raises(StoreUnavailable):
        await make(f"zk://{'x' * 70}", request_s=0.3).open()


async def test_good_server_among_bad_ones_is_found(url: str) -> None:
    async with server_that_says(b"\xff" * 100) as bad:
        servers = [Server(HOST, 1), Server(HOST, port_of(bad)), Server(HOST, port_of(url))]
        for _ in servers:  # whatever the first one is
            async with ZooKeeperStore(servers, "/good", SystemClock()) as store:
                await store.put("/a", b"", expected=ANY)


# What others see ------------------------------------------------------------------------------------------------------


async def test_ordinary_keys_are_ordinary_nodes(url: str) -> None:
    async with make(url) as store:
        await store.put("/topics/a%2Fb/ü", b"value", expected=ABSENT)
        found = await with_kazoo(url, lambda client: client.get("/topics/a%2Fb/ü"))
        assert isinstance(found, tuple) and found[0] == b"value"
        await with_kazoo(url, lambda client: client.set("/topics/a%2Fb/ü", b"theirs"))
        await with_kazoo(url, lambda client: client.create("/theirs/x", b"1", makepath=True))
        await store.sync()
        assert await value_of(store, "/topics/a%2Fb/ü") == b"theirs"
        assert await value_of(store, "/theirs/x") == b"1"


async def test_empty_parents_are_swept_away(url: str) -> None:
    async with make(url) as store:
        session = await store.open_session(5000)
        await store.put("/a/b/c/d", b"", expected=ABSENT)
        await store.put("/e/f/g", b"", expected=ABSENT, session=session)
        await store.put("/kept/x", b"", expected=ABSENT)
        await store.put("/kept", b"", expected=ABSENT)
        await store.delete("/a/b/c/d", expected=ANY)
        await store.delete("/kept/x", expected=ANY)
        await session.close()
        assert await store.children("/") == ["kept"]

        async def is_swept() -> bool:
            return await with_kazoo(url, lambda client: client.get_children("/")) == ["kept"]

        await soon(is_swept)


async def test_parents_that_a_dead_client_left_are_never_seen(url: str) -> None:
    async with make(url) as store:
        await store._nodes.create_intermediate_nodes(
            store._opened(), [store._keys.path(key) for key in ("/a", "/a/b", "/a/b/c")], store._opened().deadline()
        )
        assert await store.children("/") == []
        assert await keys_below(store, "/") == []
        assert await store.get("/a/b") is None
        assert await store.put("/a/b", b"", expected=ABSENT) >= 0
        assert await store.children("/") == ["a"]


async def test_stale_version_does_not_match_an_intermediate_node(url: str) -> None:
    async with make(url) as store:
        version = await store.put("/a", b"", expected=ABSENT)
        await store.delete("/a", expected=version)
        await store.put("/a/b", b"", expected=ABSENT)
        with pytest.raises(VersionMismatch):
            await store.put("/a", b"stale", expected=version)
        assert await store.get("/a") is None


async def test_root_without_chroot_hides_the_servers_own(tmp_path: Path) -> None:
    async with make(services.shared("zk").url) as store:
        key = f"/zookeeper/{fresh_url('zk', tmp_path).rpartition('/')[2]}"
        await store.put(key, b"mine", expected=ABSENT)
        assert "zookeeper" in await store.children("/")
        assert await store.children("/zookeeper") == [key.rpartition("/")[2]]
        assert key in [one async for one, _ in store.scan("/zookeeper")]
        assert not [one async for one, _ in store.scan("/") if one.startswith("/zookeeper/config")]
        await store.delete(key, expected=ANY)
        assert "zookeeper" not in await store.children("/")


async def test_very_deep_keys_share_a_node(url: str) -> None:
    stem = "/d" * (DEPTH_MAX - 2)
    keys = [stem, f"{stem}/x", f"{stem}/x/y", f"{stem}/x/y/z", f"{stem}/x/y/z/1", f"{stem}/xx/y", f"{stem}/w/1/2/3/4/5"]
    async with make(url) as store:
        watch = store.watch(f"{stem}/x/y")
        for key in keys:
            await store.put(key, key.encode(), expected=ABSENT)
        assert sorted(await keys_below(store, "/")) == sorted(keys)
        for tree in (stem, f"{stem}/x", f"{stem}/x/y", f"{stem}/x/y/z", f"{stem}/w/1/2"):
            below = [key for key in keys if key == tree or key.startswith(f"{tree}/")]
            found = await keys_below(store, tree)
            assert sorted(found) == sorted(below)
            names = {key[len(tree) + 1 :].partition("/")[0] for key in below if key != tree}
            assert await store.children(tree) == sorted(names)
        await store.delete(f"{stem}/x/y/z", expected=ANY)
        assert await value_of(store, f"{stem}/x/y/z/1") is not None
        assert await store.children(f"{stem}/x/y") == ["z"]
        seen = await changes_until(watch, lambda seen: bool(seen) and seen[-1].kind is DELETED)
        assert [change.key for change in seen] == [*keys[2:5], keys[3]]
        await store.bulk_delete(keys)
        assert await store.children("/") == []
