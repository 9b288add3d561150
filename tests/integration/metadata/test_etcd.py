"""The etcd store beyond the contract, on real servers: lost leaders, restarts, interruptions, compaction, limits."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from anabranch.metadata.etcd.store import EtcdStore
from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    Change,
    ChangeKind,
    OutcomeUnknown,
    SessionEvent,
    StoreFull,
    StoreUnavailable,
    ValueTooLarge,
    Versioned,
    VersionMismatch,
    Watch,
)
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from tests import services
from tests.services import etcd
from tests.services.process import Cluster
from tests.support.faults.fault_proxy import FaultProxy, Flow
from tests.support.in_memory.metadata_stores import PATIENCE_S, bulk_items, changes_until, must_get, soon, value_of
from tests.support.processes.broker_process import HOST

pytestmark = pytest.mark.xdist_group("etcd")
CREATED, MODIFIED, DELETED = ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED
INVALIDATED = Change(ChangeKind.INVALIDATED, "/")


@pytest.fixture
def place() -> str:
    return f"/t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def single() -> Cluster:
    return services.shared("etcd")


@pytest.fixture(scope="module")
def three_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = services.cluster("etcd", tmp_path_factory.mktemp("three"), size=3)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill9()


@pytest.fixture
def three(three_of_all: Cluster) -> Cluster:
    """Three running servers, whatever the previous test did to them."""
    dead = [node for node in three_of_all.nodes if not node.is_alive]
    for node in dead:
        node.launch()
    for node in dead:
        node.wait_ready()
    return three_of_all


@pytest.fixture
async def proxy(single: Cluster) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(single.nodes[0].port) as made:
        yield made


def through(proxy: FaultProxy, place: str) -> EtcdStore:
    return EtcdStore([f"{HOST}:{proxy.port}"], place, SystemClock())


def ask(cluster: Cluster, path: str, body: dict[str, object]) -> dict[str, object]:
    """etcd's JSON gateway, for operations that the store does not have."""
    connection = http.client.HTTPConnection(HOST, cluster.nodes[0].port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        assert isinstance(answer, dict)
        return answer
    finally:
        connection.close()


def compact_all(cluster: Cluster) -> None:
    header = ask(cluster, "/v3/kv/range", {"key": "AA=="})["header"]
    assert isinstance(header, dict)
    ask(cluster, "/v3/kv/compaction", {"revision": header["revision"], "physical": True})


async def changes_seen(watch: Watch, last: str) -> list[Change]:
    return await changes_until(watch, lambda seen: bool(seen) and seen[-1].key == last)


class TestThreeServers:
    @pytest.mark.slow
    async def test_everything_goes_on_when_the_leader_dies(self, three: Cluster, place: str) -> None:
        async with open_store(three.url + place, SystemClock()) as store:
            session = await store.open_session(12_000)
            events: list[SessionEvent] = []
            session.listen(events.append)
            await store.put("/live", b"", expected=ABSENT, session=session)
            watch = store.watch("/n")
            confirmed: dict[str, bytes] = {}
            unknown: set[str] = set()
            leader = await asyncio.to_thread(three.leader)
            # the one in use first, so that reads, writes, keep-alives and the watch all have to move
            in_use = three.nodes[0]
            valid_until = session.valid_until
            for number in range(60):
                if number == 20:
                    leader.kill9()
                if number == 40 and leader is not in_use:
                    await asyncio.to_thread(leader.start)
                    in_use.kill9()
                key = f"/n/{number}"
                try:
                    await store.put(key, b"%d" % number, expected=ABSENT)
                    confirmed[key] = b"%d" % number
                except OutcomeUnknown:
                    unknown.add(key)
                found = await store.get(key)
                assert found is not None or key not in confirmed
            await store.put("/n/end", b"", expected=ANY)
            assert len(confirmed) >= 50
            now = {key: found.value async for key, found in store.scan("/n")}
            assert confirmed.items() <= now.items()
            assert set(now) <= set(confirmed) | unknown | {"/n/end"}
            seen = await changes_seen(watch, "/n/end")
            assert {change.key for change in seen} == set(now)
            assert {change.kind for change in seen} == {CREATED}
            async with asyncio.timeout(PATIENCE_S):
                while session.valid_until <= valid_until + 1:
                    await SystemClock().sleep(0.05)
            assert not session.is_lost and SessionEvent.LOST not in events
            assert (await must_get(store, "/live")).ephemeral

    @pytest.mark.slow
    async def test_hanging_server_is_left(self, three: Cluster, place: str) -> None:
        async with open_store(three.url + place, SystemClock()) as store:
            session = await store.open_session(12_000)
            await store.put("/a", b"1", expected=ABSENT, session=session)
            watch = store.watch("/a")
            three.nodes[0].pause()
            try:
                assert await value_of(store, "/a") == b"1"
                version = await store.put("/a", b"2", expected=ANY, session=session)
                assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(MODIFIED, "/a")
                assert (await must_get(store, "/a")).version == version
                assert not session.is_lost
            finally:
                three.nodes[0].resume()

    @pytest.mark.slow
    async def test_without_a_majority_nothing_is_written_and_all_comes_back(self, three: Cluster, place: str) -> None:
        endpoints = [node.address for node in three.nodes]
        async with (
            EtcdStore(endpoints, place, SystemClock()) as store,
            EtcdStore(endpoints, place, SystemClock(), deadline_ms=1500) as hasty,
        ):
            await store.put("/a", b"1", expected=ABSENT)
            for node in three.nodes[:2]:
                node.kill9()
            with pytest.raises(StoreUnavailable):
                await hasty.put("/b", b"1", expected=ABSENT)
            with pytest.raises(StoreUnavailable):
                await hasty.get("/a")
            reading = asyncio.create_task(store.get("/a"))
            for node in three.nodes[:2]:
                node.launch()
            for node in three.nodes[:2]:
                await asyncio.to_thread(node.wait_ready)
            found = await reading
            assert found is not None and found.value == b"1"
            await store.put("/c", b"1", expected=ABSENT)


class TestRestart:
    async def test_store_session_and_watch_survive_a_restart(self, tmp_path: Path, place: str) -> None:
        with services.cluster("etcd", tmp_path) as cluster:
            (node,) = cluster.nodes
            async with open_store(cluster.url + place, SystemClock()) as store:
                session = await store.open_session(10_000)
                events: list[SessionEvent] = []
                session.listen(events.append)
                version = await store.put("/w/a", b"1", expected=ABSENT, session=session)
                watch = store.watch("/w")
                node.kill9()
                reading = asyncio.create_task(store.get("/w/a"))
                await asyncio.to_thread(node.start)
                found = await reading
                assert found is not None and (found.version, found.ephemeral) == (version, True)
                version = await store.put("/w/a", b"2", expected=version, session=session)
                async with open_store(cluster.url + place, SystemClock()) as other:
                    await other.put("/w/b", b"", expected=ABSENT)
                assert await changes_seen(watch, "/w/b") == [Change(MODIFIED, "/w/a"), Change(CREATED, "/w/b")]

                async def is_back() -> bool:
                    return events == [SessionEvent.DISCONNECTED, SessionEvent.RECONNECTED]

                await soon(is_back)
                assert (await must_get(store, "/w/a")).version == version

    async def test_a_server_that_lost_its_data_invalidates(self, tmp_path: Path, place: str) -> None:
        with services.cluster("etcd", tmp_path) as cluster:
            (node,) = cluster.nodes
            async with open_store(cluster.url + place, SystemClock()) as store:
                watch = store.watch("/")
                for number in range(20):
                    await store.put("/a", b"%d" % number, expected=ANY)
                assert len(await changes_until(watch, lambda seen: len(seen) == 20)) == 20
                node.kill9()
                shutil.rmtree(node.folder / "data")
                await asyncio.to_thread(node.start)
                assert await asyncio.wait_for(anext(watch), PATIENCE_S) == INVALIDATED
                assert await store.get("/a") is None
                with pytest.raises(VersionMismatch):
                    await store.put("/a", b"", expected=7)
                await store.put("/a", b"", expected=ABSENT)
                fresh = store.watch("/")
                await store.put("/b", b"", expected=ABSENT)
                assert await asyncio.wait_for(anext(fresh), PATIENCE_S) == Change(CREATED, "/b")
                assert (await changes_seen(watch, "/b"))[-1] == Change(CREATED, "/b")

    async def test_a_store_can_be_opened_again(self, single: Cluster, place: str) -> None:
        store = open_store(single.url + place, SystemClock())
        for number in range(2):
            async with store:
                watch = store.watch("/")
                await store.put(f"/{number}", b"", expected=ABSENT)
                assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(CREATED, f"/{number}")
            with pytest.raises(StoreUnavailable):
                await store.get("/0")

    async def test_nobody_there(self, place: str) -> None:
        async with FaultProxy(1) as proxy:
            proxy.refuse()
            store = EtcdStore([f"{HOST}:{proxy.port}"], place, SystemClock(), deadline_ms=500)
            with pytest.raises(StoreUnavailable, match=str(proxy.port)):
                await store.open()
            await store.close()


class TestCuts:
    async def test_a_lost_answer_is_an_unknown_outcome_and_not_repeated(
        self, single: Cluster, proxy: FaultProxy, place: str
    ) -> None:
        async with through(proxy, place) as store, open_store(single.url + place, SystemClock()) as other:
            version = await store.put("/a", b"0", expected=ABSENT)
            await other.sync()
            seen = other.watch("/")
            proxy.down.flow = Flow.LOSE
            calls = [
                asyncio.create_task(store.put("/a", b"1", expected=version)),
                asyncio.create_task(store.put("/b", b"1", expected=ABSENT)),
                asyncio.create_task(store.put("/c", b"1", expected=ANY)),
                asyncio.create_task(store.bulk_write([("/d", Versioned(b"1", 0, 0, 0, False))], preserve=False)),
            ]
            await changes_until(seen, lambda changes: {change.key for change in changes} == {"/a", "/b", "/c", "/d"})
            deleting = asyncio.create_task(store.delete("/c", expected=ANY))
            assert await asyncio.wait_for(anext(seen), PATIENCE_S) == Change(DELETED, "/c")
            proxy.cut()  # answers may still be on their way to the proxy: they must not arrive after all
            await proxy.heal()
            results = await asyncio.gather(*calls, deleting, return_exceptions=True)
            assert [type(result) for result in results] == [OutcomeUnknown] * 5
            assert [await value_of(store, key) for key in ("/a", "/b", "/c", "/d")] == [b"1", b"1", None, b"1"]
            await store.put("/end", b"", expected=ABSENT)
            assert await asyncio.wait_for(anext(seen), PATIENCE_S) == Change(CREATED, "/end"), "each happened once"

    async def test_reads_and_writes_that_never_left_go_on_after_a_cut(self, proxy: FaultProxy, place: str) -> None:
        async with through(proxy, place) as store:
            await store.put("/a", b"1", expected=ABSENT)
            proxy.refuse()
            reading = asyncio.create_task(store.get("/a"))
            refused = await asyncio.gather(asyncio.wait_for(asyncio.shield(reading), 0.3), return_exceptions=True)
            assert isinstance(refused[0], TimeoutError)
            writing = asyncio.create_task(store.put("/b", b"1", expected=ABSENT))
            await asyncio.wait({writing}, timeout=0.3)
            assert not writing.done()
            await proxy.heal()
            found = await reading
            assert found is not None and found.value == b"1"
            await writing  # it never reached a server, so it was sent again
            assert await value_of(store, "/b") == b"1"

    async def test_watch_misses_nothing_after_a_cut(self, single: Cluster, proxy: FaultProxy, place: str) -> None:
        async with through(proxy, place) as store, open_store(single.url + place, SystemClock()) as other:
            watch = store.watch("/w")
            expected: list[Change] = []
            for number in range(30):
                if number in (5, 6, 17):
                    proxy.cut()
                if number == 10:
                    proxy.refuse()
                if number == 14:
                    await proxy.heal()
                key = f"/w/{number % 3}"
                await other.put(key, b"%d" % number, expected=ANY)
                expected.append(Change(CREATED if number < 3 else MODIFIED, key))
            await other.delete("/w/0", expected=ANY)
            await other.put("/w/end", b"", expected=ABSENT)
            seen = await changes_seen(watch, "/w/end")
            assert seen == [*expected, Change(DELETED, "/w/0"), Change(CREATED, "/w/end")]

    async def test_watch_shows_no_earlier_changes(self, proxy: FaultProxy, place: str) -> None:
        async with through(proxy, place) as store:
            store.watch("/")  # the stream runs, and is behind
            for number in range(20):
                await store.put(f"/old/{number}", b"", expected=ABSENT)
                proxy.down.delay_s = 0.05 if number == 18 else 0.0
            late = store.watch("/")
            await store.put("/new", b"", expected=ABSENT)
            assert await asyncio.wait_for(anext(late), PATIENCE_S) == Change(CREATED, "/new")

    async def test_compaction_during_a_cut_invalidates(self, single: Cluster, proxy: FaultProxy, place: str) -> None:
        async with through(proxy, place) as store, open_store(single.url + place, SystemClock()) as other:
            watch = store.watch("/w")
            await other.put("/w/a", b"0", expected=ABSENT)
            assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(CREATED, "/w/a")
            proxy.refuse()
            for number in range(5):
                await other.put("/w/a", b"%d" % number, expected=ANY)
            await asyncio.to_thread(compact_all, single)
            await proxy.heal()
            first = await asyncio.wait_for(anext(watch), PATIENCE_S)
            assert first == Change(ChangeKind.INVALIDATED, "/w")
            await other.put("/w/end", b"", expected=ABSENT)
            assert (await changes_seen(watch, "/w/end"))[-1] == Change(CREATED, "/w/end")

    async def test_short_interruption_keeps_the_session(self, proxy: FaultProxy, place: str) -> None:
        async with through(proxy, place) as store:
            session = await store.open_session(9_000)
            events: list[SessionEvent] = []
            session.listen(events.append)
            await store.put("/live", b"", expected=ABSENT, session=session)
            proxy.refuse()
            async with asyncio.timeout(PATIENCE_S):
                while not events:
                    await SystemClock().sleep(0.02)
            await proxy.heal()
            async with asyncio.timeout(PATIENCE_S):
                while len(events) < 2:
                    await SystemClock().sleep(0.02)
            assert events == [SessionEvent.DISCONNECTED, SessionEvent.RECONNECTED]
            assert session.valid_until > SystemClock().monotonic()
            assert (await must_get(store, "/live")).ephemeral

    @pytest.mark.slow
    async def test_a_long_silence_loses_the_session(self, single: Cluster, proxy: FaultProxy, place: str) -> None:
        async with through(proxy, place) as store, open_store(single.url + place, SystemClock()) as other:
            session = await store.open_session(2_000)
            events: list[SessionEvent] = []
            session.listen(events.append)
            await store.put("/live", b"", expected=ABSENT, session=session)
            await other.sync()
            gone = other.watch("/live")
            proxy.black_hole()
            assert await asyncio.wait_for(anext(gone), PATIENCE_S) == Change(DELETED, "/live")
            assert SystemClock().monotonic() >= session.valid_until, "the server ended it while it called itself valid"
            await asyncio.wait_for(session.wait_lost(), PATIENCE_S)
            assert events == [SessionEvent.DISCONNECTED, SessionEvent.LOST]
            await proxy.heal()
            assert await store.get("/live") is None

    async def test_one_black_hole_of_two_ways(self, single: Cluster, proxy: FaultProxy, place: str) -> None:
        endpoints = [f"{HOST}:{proxy.port}", single.nodes[0].address]
        async with EtcdStore(endpoints, place, SystemClock()) as store:
            await store.put("/a", b"1", expected=ABSENT)
            watch = store.watch("/")
            proxy.black_hole()
            assert await value_of(store, "/a") == b"1"
            await store.put("/b", b"1", expected=ABSENT)
            assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(CREATED, "/b")


class TestHolder:
    @pytest.mark.slow
    async def test_keys_of_a_killed_holder_vanish(self, single: Cluster, place: str) -> None:
        url = single.url + place
        async with open_store(url, SystemClock()) as store:
            watch = store.watch("/live")
            holder = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.support.processes.etcd_child",
                url,
                "/live/a",
                "1000",
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                assert holder.stdout is not None
                granted_ms = int(await asyncio.wait_for(holder.stdout.readline(), PATIENCE_S))
                assert granted_ms == 2000, "the least there is"
                assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(CREATED, "/live/a")
                assert (await must_get(store, "/live/a")).ephemeral
            finally:
                holder.kill()
                await holder.wait()
            assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(DELETED, "/live/a")
            assert await store.children("/") == []


class TestPrefix:
    async def test_stores_of_different_prefixes_are_separate(self, single: Cluster, place: str) -> None:
        async with (
            open_store(single.url + place, SystemClock()) as one,
            open_store(f"{single.url}{place}x/", SystemClock()) as two,
        ):
            watch = two.watch("/")
            await one.put("/a", b"1", expected=ABSENT)
            await two.raise_versions(10**6)  # empty, whatever the neighbour has
            version = await two.put("/a", b"2", expected=ABSENT)
            assert version > 10**6
            assert (await must_get(one, "/a")).version < 10**6
            assert await asyncio.wait_for(anext(watch), PATIENCE_S) == Change(CREATED, "/a")
            await two.delete("/a", expected=version)
            assert await value_of(one, "/a") == b"1"
            assert await two.children("/") == []


class TestLimits:
    async def test_full_store_raises_store_full_and_still_deletes(self, tmp_path: Path, place: str) -> None:
        with etcd.cluster(tmp_path, flags=["--quota-backend-bytes=3000000"]) as cluster:
            async with open_store(cluster.url + place, SystemClock()) as store:
                await store.put("/kept", b"1", expected=ABSENT)
                with pytest.raises(StoreFull) as caught:
                    for number in range(1000):  # etcd measures its file a few times a second
                        await store.put(f"/big/{number}", bytes(500_000), expected=ABSENT)
                assert caught.value.retryable
                with pytest.raises(StoreFull):
                    await store.bulk_write([("/x", Versioned(bytes(500_000), 0, 0, 0, False))], preserve=False)
                assert await value_of(store, "/kept") == b"1"
                await store.delete("/kept", expected=ANY)
                await store.bulk_delete(["/big/0"])
                assert "0" not in await store.children("/big")

    async def test_a_server_with_smaller_limits(self, tmp_path: Path, place: str) -> None:
        flags = ["--max-request-bytes=200000", "--max-txn-ops=20"]
        with etcd.cluster(tmp_path, flags=flags) as cluster:
            async with open_store(cluster.url + place, SystemClock()) as store:
                with pytest.raises(ValueTooLarge) as caught:
                    await store.put("/a", bytes(300_000), expected=ABSENT)
                assert (caught.value.key, caught.value.size) == ("/a", 300_000)
                items = [(f"/b/{i:03}", Versioned(bytes(i * 100), i, 1, 2, False)) for i in range(300)]
                await store.raise_versions(1000)
                await store.bulk_write(items, preserve=True)
                assert await bulk_items(store, "/") == items
                await store.bulk_write(items, preserve=False)
                assert [key for key, _ in await bulk_items(store, "/")] == [key for key, _ in items]
                with pytest.raises(ValueTooLarge):
                    await store.bulk_write([("/a", Versioned(bytes(300_000), 0, 0, 0, False))], preserve=False)
                await store.bulk_delete([key for key, _ in items])
                assert await store.children("/") == []


class TestBulk:
    async def test_ordinary_bulk_writes_keep_creation_times(self, single: Cluster, place: str) -> None:
        async with open_store(single.url + place, SystemClock()) as store:
            await store.raise_versions(10)
            moved = [(f"/b/{i:04}", Versioned(b"old", i % 10, 1000 + i, 2000, False)) for i in range(300)]
            await store.bulk_write(moved, preserve=True)
            fresh = [(f"/c/{i:04}", Versioned(b"new", 0, 0, 0, False)) for i in range(300)]
            again = [(key, Versioned(b"new", 0, 0, 0, False)) for key, _ in moved]
            await store.bulk_write([*again, *fresh], preserve=False)
            found = await bulk_items(store, "/b")
            assert [one.created_ms for _, one in found] == [one.created_ms for _, one in moved]
            assert {one.value for _, one in found} == {b"new"}
            assert all(one.version > 10 and one.modified_ms > 2000 for _, one in found)
            assert len(await bulk_items(store, "/c")) == 300

    async def test_bulk_scan_is_a_snapshot(self, single: Cluster, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("anabranch.metadata.etcd.scan.PAGE_KEYS_MAX", 700)
        async with open_store(single.url + place, SystemClock()) as store:
            items = [(f"/s/{i:05}", Versioned(b"old", 0, 0, 0, False)) for i in range(6000)]
            await store.bulk_write(items, preserve=False)
            scan = store.bulk_scan("/s")
            first = await anext(scan)
            await store.put("/s/05999", b"changed", expected=ANY)
            await store.delete("/s/05998", expected=ANY)
            rest = [item for page in [page async for page in scan] for item in page]
            assert len(first) + len(rest) == 6000
            assert {one.value for _, one in [*first, *rest]} == {b"old"}
            assert await value_of(store, "/s/05999") == b"changed"

    async def test_children_skip_deep_subtrees(
        self, single: Cluster, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("anabranch.metadata.etcd.scan.PAGE_KEYS_MAX", 7)
        async with open_store(single.url + place, SystemClock()) as store:
            keys = [f"/p/{name}/{i}" for name in ("a", "a-", "a0", "b") for i in range(25)]
            keys += ["/p/a", "/p/c", "/p/z/1/2/3", *(f"/p/flat{i:02}" for i in range(15))]
            await store.bulk_write([(key, Versioned(b"", 0, 0, 0, False)) for key in keys], preserve=False)
            expected = sorted({key.split("/")[2] for key in keys})
            assert await store.children("/p") == expected
            assert await store.children("/p/b") == sorted(map(str, range(25)))
