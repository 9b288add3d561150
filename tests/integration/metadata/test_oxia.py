"""The Oxia store beyond the contract, on real servers: restarts, shards, shard sessions, service names, bad answers."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

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
    Versioned,
)
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, NamespaceMissing
from anabranch.metadata.oxia.records import Address
from anabranch.metadata.oxia.server_channel import ASSIGNMENTS, CLOSE_SESSION, KEEP_ALIVE, READ, SCAN, WRITE
from anabranch.metadata.oxia.sessions import OxiaSession
from anabranch.metadata.oxia.shard_leaders import Cluster as Shards
from anabranch.metadata.oxia.store import OxiaStore, open_oxia
from anabranch.runtime.clock import SystemClock
from tests import services
from tests.services import oxia
from tests.services.process import Cluster
from tests.support.faults.fault_proxy import FaultProxy, Flow
from tests.support.faults.oxia_relay import HOST, NEW, OLD, OxiaRelay
from tests.support.in_memory.metadata_stores import PATIENCE_S, changes_until, keys_below, soon, value_of
from tests.support.processes.broker_process import free_port

pytestmark = pytest.mark.xdist_group("oxia")
CREATED, MODIFIED, DELETED = ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED
SHORT_MS = 1_500


@pytest.fixture
def single() -> Cluster:
    return services.shared("oxia")


@pytest.fixture
def place() -> str:
    return f"/default/t{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def store(single: Cluster, place: str) -> AsyncIterator[OxiaStore]:
    async with at(single.hosts + place) as opened:
        yield opened


def at(rest: str, deadline_ms: int = 10_000) -> OxiaStore:
    return open_oxia(f"//{rest}", SystemClock(), deadline_ms=deadline_ms)


@asynccontextmanager
async def proxied(single: Cluster, place: str) -> AsyncIterator[tuple[FaultProxy, OxiaStore]]:
    """A store behind a fault proxy, with a short deadline."""
    async with FaultProxy(single.nodes[0].port) as proxy, at(f"{HOST}:{proxy.port}{place}", SHORT_MS) as away:
        yield proxy, away


async def one_key_per_shard(single: Cluster, place: str) -> list[str]:
    """Three keys on three shards."""
    address = Address.parse(f"//{single.hosts}{place}")
    shards = Shards(address.seeds, address.namespace, SystemClock(), 10.0)
    await shards.open()
    try:
        found: dict[int, str] = {}
        for number in range(1000):
            found.setdefault(shards.shards.of_key(f"{address.prefix}/live/{number}").id, f"/live/{number}")
        return list(found.values())
    finally:
        await shards.close()


class TestRestart:
    async def test_streams_sessions_and_watches_survive_kill_9(self, tmp_path: Path) -> None:
        with services.cluster("oxia", tmp_path) as cluster:
            async with at(cluster.hosts, SHORT_MS) as store:
                session = await store.open_session(60_000)
                events: list[SessionEvent] = []
                session.listen(events.append)
                version = await store.put("/kept", b"1", expected=ABSENT)
                await store.put("/live", b"", expected=ABSENT, session=session)
                watch = store.watch("/")
                await asyncio.to_thread(cluster.nodes[0].kill9)

                results = await asyncio.gather(
                    store.get("/kept"),
                    store.put("/kept", b"2", expected=version),
                    store.delete("/kept", expected=version),
                    store.children("/"),
                    keys_below(store, "/"),
                    store.open_session(10_000),
                    store.sync(),
                    return_exceptions=True,
                )
                assert all(isinstance(result, StoreUnavailable) for result in results), results
                await soon(lambda: said(events, SessionEvent.DISCONNECTED))

                await asyncio.to_thread(cluster.nodes[0].start)
                await soon(lambda: said(events, SessionEvent.RECONNECTED))
                assert await value_of(store, "/kept") == b"1"  # the refused write did not happen
                assert await value_of(store, "/live") == b""
                await store.put("/kept", b"3", expected=version)
                await store.put("/live", b"4", expected=ANY, session=session)
                seen = await changes_until(watch, lambda changes: Change(MODIFIED, "/live") in changes)
                assert Change(MODIFIED, "/kept") in seen
                assert events[-1] is SessionEvent.RECONNECTED
                await session.close()
                assert await store.children("/") == ["kept"]

    async def test_another_history_is_noticed(self, tmp_path: Path) -> None:
        """A server with a lower offset than before has lost data, so offsets cannot be resumed."""
        ports = free_port(), free_port()
        arguments = ["-p", f"{HOST}:{ports[0]}", "-m", f"{HOST}:{ports[1]}", "--shards", "1"]

        def start(folder: Path) -> subprocess.Popen[bytes]:
            folders = ["--data-dir", str(folder / "db"), "--wal-dir", str(folder / "wal")]
            command = [str(oxia.obtain()), "standalone", *arguments, *folders]
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        process = await asyncio.to_thread(start, tmp_path / "one")
        try:
            async with at(f"{HOST}:{ports[0]}") as store:
                for number in range(20):
                    await store.put(f"/{number}", b"", expected=ABSENT)
                watch = store.watch("/")
                process.kill()
                process.wait()
                process = await asyncio.to_thread(start, tmp_path / "two")
                seen = await changes_until(watch, bool)
                assert seen == [Change(ChangeKind.INVALIDATED, "/")]
                await store.put("/new", b"", expected=ABSENT)
                assert await changes_until(watch, bool) == [Change(CREATED, "/new")]
        finally:
            process.kill()
            process.wait()


async def said(events: list[SessionEvent], event: SessionEvent) -> bool:
    return event in events


class TestCuts:
    async def test_changes_during_an_interruption_are_delivered_later(self, single: Cluster, place: str) -> None:
        """The feed resumes at its offset: every change arrives in order, without an invalidation."""
        async with proxied(single, place) as (proxy, away), at(single.hosts + place) as other:
            watch = away.watch("/")
            proxy.refuse()
            for number in range(30):
                await other.put(f"/k/{number % 3}", b"%d" % number, expected=ANY)
            await proxy.heal()
            seen = await changes_until(watch, lambda changes: len(changes) == 30)
            for name in "012":
                kinds = [change.kind for change in seen if change.key == f"/k/{name}"]
                assert kinds == [CREATED, *[MODIFIED] * 9]

    async def test_a_write_whose_answer_is_lost_is_unknown_and_not_repeated(self, single: Cluster, place: str) -> None:
        async with proxied(single, place) as (proxy, away), at(single.hosts + place) as other:
            await away.put("/a", b"0", expected=ABSENT)
            watch = other.watch("/a")
            proxy.black_hole()
            proxy.up.heal()  # requests pass, answers do not
            with pytest.raises(OutcomeUnknown):
                await away.put("/a", b"1", expected=ANY)
            await proxy.heal()
            await soon(partial(reads, away, "/a", b"1"))
            await soon(partial(writes, away, "/a"))
            await other.delete("/a", expected=ANY)
            seen = await changes_until(watch, lambda changes: changes[-1:] == [Change(DELETED, "/a")])
            kinds = [change.kind for change in seen]
            if kinds[0] is CREATED:  # from before the watch was made: the hint of another store's write may come late
                kinds.pop(0)
            assert kinds == [MODIFIED, MODIFIED, DELETED]

    async def test_write_on_a_cut_connection_is_unknown_and_not_repeated(self, single: Cluster, place: str) -> None:
        async with proxied(single, place) as (proxy, away), at(single.hosts + place) as other:
            await other.put("/a", b"0", expected=ABSENT)  # so that the lost write is the first on its stream
            watch = other.watch("/a")
            proxy.down.flow = Flow.HOLD
            lost = asyncio.ensure_future(away.put("/a", b"1", expected=ANY))
            assert await changes_until(watch, bool) == [Change(MODIFIED, "/a")]
            proxy.cut()
            proxy.down.heal()  # it could be repeated now
            with pytest.raises(OutcomeUnknown):
                await lost
            await soon(partial(writes, away, "/b"))
            await other.delete("/a", expected=ANY)
            assert await changes_until(watch, bool) == [Change(DELETED, "/a")]

    async def test_write_that_was_never_sent_is_not_unknown(self, single: Cluster, place: str) -> None:
        async with proxied(single, place) as (proxy, away):
            proxy.refuse()
            await soon(lambda: refuses_plainly(away))
            await proxy.heal()
            await soon(lambda: writes(away, "/b"))


async def refuses_plainly(store: OxiaStore) -> bool:
    """Is the write refused as not done? The first one may have been pending when the connection was cut."""
    try:
        await store.put("/a", b"", expected=ANY)
    except OutcomeUnknown:
        return False
    except StoreUnavailable:
        return True
    return False


async def reads(store: OxiaStore, key: str, value: bytes) -> bool:
    try:
        return await value_of(store, key) == value
    except StoreUnavailable:
        return False


async def writes(store: OxiaStore, key: str) -> bool:
    try:
        await store.put(key, b"", expected=ANY)
    except StoreUnavailable:
        return False
    return True


class TestSessions:
    async def test_parts_on_all_shards_expire_together(self, single: Cluster, place: str) -> None:
        keys = await one_key_per_shard(single, place)
        async with proxied(single, place) as (proxy, away), at(single.hosts + place) as other:
            session = await away.open_session(1)
            assert session.ttl_ms == away.capabilities.ttl_ms_min == 2_000
            for key in keys:
                await away.put(key, b"", expected=ABSENT, session=session)
            events: list[SessionEvent] = []
            session.listen(events.append)
            clock = SystemClock()
            before = session.valid_until
            proxy.black_hole()
            await soon(lambda: is_empty(other, "/live"))
            assert clock.monotonic() >= session.valid_until >= before  # not one key went before its time
            await proxy.heal()
            async with asyncio.timeout(PATIENCE_S):
                await session.wait_lost()
            assert events == [SessionEvent.DISCONNECTED, SessionEvent.LOST]
            with pytest.raises(SessionLost):
                await away.put(keys[0], b"", expected=ABSENT, session=session)

    async def test_lost_shard_session_ends_the_others(self, single: Cluster, place: str, store: OxiaStore) -> None:
        """The whole session ends, long before the ttl of the other parts."""
        keys = await one_key_per_shard(single, place)
        session = await store.open_session(300_000)
        assert isinstance(session, OxiaSession)
        for key in keys:
            await store.put(key, b"", expected=ABSENT, session=session)
        shard = 2
        part = await session.part(shard, SystemClock().monotonic() + 10)
        shards = Shards((single.hosts,), "default", SystemClock(), 10.0)
        await shards.open()
        request = wire.SessionRequest(shard=shard, session_id=part)
        await shards.leader(shard).ask(CLOSE_SESSION, request, wire.Nothing)
        await shards.close()
        async with asyncio.timeout(PATIENCE_S):
            await session.wait_lost()
        await soon(lambda: is_empty(store, "/live"))

    async def test_put_with_ended_session_raises_session_lost(
        self, single: Cluster, place: str, store: OxiaStore
    ) -> None:
        session = await store.open_session(300_000)
        assert isinstance(session, OxiaSession)
        key = (await one_key_per_shard(single, place))[0]
        await store.put(key, b"", expected=ABSENT, session=session)
        for shard, part in session.parts.items():
            request = wire.SessionRequest(shard=shard, session_id=part)
            await store.shards.leader(shard).ask(CLOSE_SESSION, request, wire.Nothing)
        with pytest.raises(SessionLost):
            await store.put(key, b"", expected=ANY, session=session)
        assert session.is_lost


async def is_empty(store: OxiaStore, key: str) -> bool:
    return await store.children(key) == []


class TestShards:
    async def test_interoperates_with_the_oxia_cli(self, single: Cluster, place: str, store: OxiaStore) -> None:
        """The CLI computes the shard itself, so a wrong hash would find nothing."""
        prefix = "/" + place.split("/")[2]
        binary = await asyncio.to_thread(oxia.obtain)

        def client(*arguments: str) -> str:
            command = [str(binary), "client", "-a", single.hosts, *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

        names = ["/a", "/ü/日本/🐍", "/sp ace/%2F", "/deep/" + "x/" * 30 + "end"]
        of_shard = {store.shards.shards.of_key(f"{prefix}/{number}").id: f"/{number}" for number in range(1000)}
        assert len(of_shard) == 3
        names += of_shard.values()
        for name in names:
            await store.put(name, name.encode(), expected=ABSENT)
            assert name in await asyncio.to_thread(client, "get", prefix + name)
            await asyncio.to_thread(client, "put", f"{prefix}/theirs{name}", "from Go")
            assert await value_of(store, f"/theirs{name}") == b"from Go"

    async def test_children_of_a_tree_of_many_pages(self, store: OxiaStore) -> None:
        """Large subtrees are stepped over, so that not all their keys are transferred."""
        blank = Versioned(b"", 1, 1, 1, False)
        wide = "n" * 1000
        names = [f"big{number}" for number in range(3)]
        items = [(f"/t/{name}/{wide}/{i}", blank) for name in names for i in range(9000)]
        items += [(f"/t/z{i}/x", blank) for i in range(100)] + [("/t/flat", blank), ("/t/big1", blank)]
        await store.bulk_write(items, preserve=False)
        assert await store.children("/t") == sorted([*names, "flat", *(f"z{i}" for i in range(100))])
        assert await store.children("/t/big0") == [wide]
        assert len(await store.children(f"/t/big0/{wide}")) == 9000
        assert len(await keys_below(store, "/t/big2")) == 9000

    async def test_everything_queued_is_written_before_the_store_closes(self, single: Cluster, place: str) -> None:
        async with at(single.hosts + place) as store:
            puts = [asyncio.ensure_future(store.put(f"/k/{i}", b"v" * 500, expected=ABSENT)) for i in range(2000)]
            await asyncio.sleep(0)
        assert all(isinstance(result, int) for result in await asyncio.gather(*puts))
        async with at(single.hosts + place) as store:
            assert len(await store.children("/k")) == 2000

    async def test_a_leader_that_dies_is_followed(self, tmp_path: Path) -> None:
        with services.cluster("oxia", tmp_path, size=3) as cluster:
            async with at(cluster.hosts, 20_000) as store:
                session = await store.open_session(30_000)
                keys = [f"/k/{i}" for i in range(12)]
                for key in keys:
                    await store.put(key, b"1", expected=ABSENT, session=session)
                watch = store.watch("/k")
                await asyncio.to_thread(cluster.leader().kill9)
                for key in keys:
                    await soon(partial(writes, store, key))
                seen = await changes_until(watch, lambda changes: {c.key for c in changes} >= set(keys) or gap(changes))
                assert seen
                assert not session.is_lost
                assert await store.children("/k") == sorted(key[3:] for key in keys)
                await store.sync()


def gap(changes: list[Change]) -> bool:
    return any(change.kind is ChangeKind.INVALIDATED for change in changes)


async def was_called(relay: OxiaRelay, method: str) -> bool:
    return any(path.endswith(method) for path in relay.called)


class TestNames:
    async def test_a_server_with_the_old_name(self, single: Cluster, place: str) -> None:
        await self.check(single, place, [OLD], used=OLD)

    async def test_a_server_with_the_new_name(self, single: Cluster, place: str) -> None:
        await self.check(single, place, [NEW], used=NEW)

    async def test_a_server_with_both(self, single: Cluster, place: str) -> None:
        await self.check(single, place, [OLD, NEW], used=NEW)

    async def check(self, single: Cluster, place: str, offered: list[str], used: str) -> None:
        async with OxiaRelay(single.nodes[0].address, offered) as relay:
            async with at(relay.address + place) as store:
                session = await store.open_session(2_000)
                await store.put("/a", b"1", expected=ABSENT, session=session)
                await soon(partial(was_called, relay, KEEP_ALIVE))
                assert await value_of(store, "/a") == b"1"
                assert await store.children("/") == ["a"]
                assert await keys_below(store, "/") == ["/a"]
                await session.close()
                assert await store.get("/a") is None
            methods = {path.rpartition("/")[2] for path in relay.called}
            assert len(methods) == 9
            assert {f"/{used}/{method}" for method in methods} <= relay.called

    async def test_service_name_change_is_detected(self, single: Cluster, place: str) -> None:
        """An older release takes over the address; later calls detect it."""
        offered = [NEW]
        async with OxiaRelay(single.nodes[0].address, offered) as relay, at(relay.address + place) as store:
            await store.put("/a", b"1", expected=ABSENT)
            offered[:] = [OLD]
            assert await value_of(store, "/a") == b"1"

    async def test_no_oxia_at_all(self, single: Cluster, place: str) -> None:
        async with OxiaRelay(single.nodes[0].address, ["other.Service"]) as relay:
            with pytest.raises(StoreUnavailable, match="no Oxia server"):
                await at(relay.address + place, SHORT_MS).open()

    async def test_missing_namespace_is_reported(self, single: Cluster) -> None:
        with pytest.raises(NamespaceMissing):
            await at(f"{single.hosts}/nowhere").open()

    async def test_silent_seed_is_skipped(self, single: Cluster, place: str) -> None:
        held: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: held.append(writer), HOST, 0)
        port = silent.sockets[0].getsockname()[1]
        try:
            async with at(f"{HOST}:{port},{single.hosts}{place}", 6_000) as store:
                await store.put("/a", b"", expected=ABSENT)
            assert held
        finally:
            silent.close()
            for writer in held:
                writer.transport.abort()

    async def test_unreachable_server_is_an_error_in_time(self) -> None:
        with pytest.raises(StoreUnavailable):
            await at(f"{HOST}:{free_port()}/default", SHORT_MS).open()


def garbage(_: bytes) -> bytes:
    return b"\xff\xfe\xfd"


def nothing(_: bytes) -> bytes:
    return b""


def hole(data: bytes) -> bytes:
    answer = wire.Assignments.FromString(data)
    del answer.namespaces["default"].assignments[1]
    return answer.SerializeToString()


class TestStrangeAnswers:
    @pytest.mark.parametrize("spoil", [garbage, nothing, hole])
    async def test_assignments(self, single: Cluster, place: str, spoil: Callable[[bytes], bytes]) -> None:
        async with OxiaRelay(single.nodes[0].address, [NEW]) as relay:
            relay.spoil[ASSIGNMENTS] = spoil
            with pytest.raises(AnswerUnreadable):
                await at(relay.address + place).open()

    @pytest.mark.parametrize("spoil", [garbage, nothing])
    async def test_reads(self, single: Cluster, place: str, spoil: Callable[[bytes], bytes]) -> None:
        async with OxiaRelay(single.nodes[0].address, [NEW]) as relay, at(relay.address + place) as store:
            relay.spoil[READ] = spoil
            with pytest.raises(AnswerUnreadable):
                await store.get("/a")
            relay.spoil.clear()
            assert await store.get("/a") is None

    async def test_scans(self, single: Cluster, place: str) -> None:
        async with OxiaRelay(single.nodes[0].address, [NEW]) as relay, at(relay.address + place) as store:
            await store.put("/a", b"", expected=ABSENT)
            relay.spoil[SCAN] = garbage
            with pytest.raises(AnswerUnreadable):
                await keys_below(store, "/")

    @pytest.mark.parametrize("spoil", [garbage, nothing])
    async def test_write_with_unreadable_answer_is_unknown(
        self, single: Cluster, place: str, spoil: Callable[[bytes], bytes]
    ) -> None:
        async with OxiaRelay(single.nodes[0].address, [NEW]) as relay, at(relay.address + place) as store:
            relay.spoil[WRITE] = spoil
            with pytest.raises(OutcomeUnknown):
                await store.put("/a", b"1", expected=ABSENT)
            relay.spoil.clear()
            assert await value_of(store, "/a") == b"1"
            await store.put("/b", b"1", expected=ABSENT)
