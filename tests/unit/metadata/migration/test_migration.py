"""A whole migration in one thread: three processes on memory stores that share their data."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.interface import ABSENT, ANY, ChangeKind, VersionMismatch
from anabranch.metadata.migration.follow import open_current
from anabranch.metadata.migration.participant_state import Stage
from anabranch.metadata.migration.record import MigrationRecord
from anabranch.metadata.migration.service import BadTarget, MigrationRunning
from anabranch.metadata.recipes.sequential_keys import put_sequential
from anabranch.metadata.transfer import TargetNotEmpty
from anabranch.metadata.write_gate import GatedStore
from anabranch.model.errors import NotAllowed
from tests.support.in_memory.metadata_migration import Cluster, ended
from tests.support.in_memory.simulated_loop import run_simulated


def test_three_processes_move_with_writes_going_on() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with (
            cluster.process("p1") as (one, mover),
            cluster.process("p2") as (two, _),
            cluster.process("p3") as (
                three,
                _,
            ),
        ):
            for number in range(600):
                await one.put(f"/tree/{number}", b"%d" % number, expected=ABSENT)
            held = await two.put("/held", b"1", expected=ABSENT)
            key, _ = await put_sequential(one, "/queue/item-", b"")
            session = await three.open_session(5_000)
            lock = await three.put("/lock", b"three", expected=ABSENT, session=session)
            watch = two.watch("/tree")
            written: dict[str, bytes] = {}

            async def write(store: GatedStore, name: str) -> None:
                for number in range(300):
                    await store.put(f"/written/{name}-{number % 50}", b"%d" % number, expected=ANY)
                    written[f"/written/{name}-{number % 50}"] = b"%d" % number
                    await asyncio.sleep(0.003)

            async with asyncio.TaskGroup() as group:
                group.create_task(write(one, "one"))
                group.create_task(write(two, "two"))
                await mover.start("memory:b")
                status = await ended(mover)
            assert (status["phase"], status["targetUrl"], status["error"]) == ("COMPLETED", "memory:b", None)
            assert status["participants"] == {"p1": "SWITCHED", "p2": "SWITCHED", "p3": "SWITCHED"}
            tree = await cluster.tree("memory:b")
            assert {k: v for k, (v, _) in tree.items() if k.startswith("/written/")} == written
            assert len([k for k in tree if k.startswith("/tree/")]) == 600
            await two.put("/held", b"2", expected=held)  # a version from before the move
            with pytest.raises(VersionMismatch):
                await two.put("/held", b"3", expected=held)
            assert (await put_sequential(two, "/queue/item-", b""))[0] > key
            assert not session.is_lost and (await one.get("/lock")) is not None
            await three.delete("/lock", expected=lock)
            changes = [await anext(watch)]
            while changes[-1].kind is not ChangeKind.INVALIDATED:
                changes.append(await anext(watch))
            await one.put("/tree/new", b"", expected=ABSENT)
            assert (await anext(watch)).key == "/tree/new"
            assert "/tree/new" not in await cluster.tree("memory:a")
            async with cluster.process("late") as (late, _):  # started with the old URL
                assert await late.get("/tree/new") is not None

    run_simulated(story())


def test_a_chain_ends_with_the_same_tree_and_versions() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (_, peer):
            for number in range(50):
                await store.put(f"/tree/{number % 20}", b"%d" % number, expected=ANY)
            before = await cluster.tree("memory:a")
            for url, by in (("memory:b", mover), ("memory:c", peer), ("memory:a", mover)):
                await by.start(url, purge_target=url == "memory:a")
                assert (await ended(by))["phase"] == "COMPLETED"
                await ended(mover)
                assert await cluster.tree(url) == before
                assert (await by.verify())["different"] == 0

    run_simulated(story())


def test_start_refuses_targets_that_cannot_be_used() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover):
            await store.put("/x", b"", expected=ABSENT)
            async with cluster.open("memory:full") as full:
                await full.put("/y", b"", expected=ABSENT)
            for url, error in (("memory:a", BadTarget), ("memory:full", TargetNotEmpty), ("no:", BadTarget)):
                with pytest.raises(error):
                    await mover.start(url)
            assert await cluster.tree("memory:full") != {}
            assert (await mover.status())["phase"] == "NOT_STARTED"
            await mover.start("memory:b")
            with pytest.raises(MigrationRunning):
                await mover.start("memory:c")
            in_use, real = await open_current("memory:b", cluster.open, 1)
            assert in_use == "memory:a"
            await real.close()
            assert (await ended(mover))["phase"] == "COMPLETED"

    run_simulated(story())


def test_an_aborted_attempt_leaves_the_source_and_a_second_one_works() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (other, peer):
            for number in range(2_000):
                await store.put(f"/tree/{number}", b"v", expected=ABSENT)
            with pytest.raises(NotAllowed):
                await peer.abort()
            await mover.start("memory:b", rate=500)
            await asyncio.sleep(1)
            await peer.abort()
            status = await ended(mover)
            assert (status["phase"], status["error"]) == ("FAILED", "aborted by an administrator")
            await other.put("/after", b"", expected=ABSENT)
            assert "/after" in await cluster.tree("memory:a")
            async with asyncio.timeout(60):
                while await cluster.tree("memory:b"):  # noqa: ASYNC110 - the store has no event for it
                    await asyncio.sleep(0.1)
            await peer.start("memory:c")
            assert (await ended(peer))["attempt"] == 2
            assert "/after" in await cluster.tree("memory:c")

    run_simulated(story())


def test_a_silent_participant_fails_the_attempt_with_its_name() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (other, peer):
            async with other.gate.permit():  # an operation that does not end
                await mover.start("memory:b")
                status = await ended(mover)
            assert status["phase"] == "FAILED" and "p2" in str(status["error"])
            await store.put("/x", b"", expected=ABSENT)
            await other.put("/y", b"", expected=ABSENT)
            assert set(await cluster.tree("memory:a")) == {"/x", "/y"}
            assert peer.participant.stage is Stage.IDLE

    run_simulated(story())


def test_a_dead_coordinator_fails_the_attempt_and_opens_the_gates() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p2") as (other, peer):
            async with cluster.process("p1") as (store, mover):
                for number in range(2_000):
                    await store.put(f"/tree/{number}", b"v", expected=ABSENT)
                await mover.start("memory:b", rate=500)
                for process, _, real in cluster.stores:
                    if process == "p1":
                        real.crash()
            status = await ended(peer)
            assert status["phase"] == "FAILED" and "p1" in str(status["error"])
            await other.put("/after", b"", expected=ABSENT)

    run_simulated(story())


def test_a_record_with_the_fields_of_pip_454_only_is_read() -> None:
    record = MigrationRecord.from_bytes(b'{"phase":"COMPLETED","targetUrl":"oxia://h:1/ns"}')
    assert record.has_moved and record.target_url == "oxia://h:1/ns"
    assert MigrationRecord.from_bytes(record.to_bytes()) == record


def test_after_an_abort_by_another_broker_the_next_attempt_starts_at_once() -> None:
    """The coordinator of the aborted one would go on copying for minutes; its leases must not stand in the way."""

    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (_, peer):
            for number in range(2_000):
                await store.put(f"/tree/{number}", b"v", expected=ABSENT)
            for target, is_purged in (("memory:c", False), ("memory:b", True)):
                await mover.start("memory:b", rate=10, purge_target=True)
                await asyncio.sleep(1)
                await peer.abort()
                began = cluster.clock.monotonic()
                await peer.start(target, purge_target=is_purged, rate=0)
                assert cluster.clock.monotonic() - began < 2
                status = await ended(peer)
                assert (status["phase"], status["error"]) == ("COMPLETED", None)
                assert len(await cluster.tree(target)) == 2_000
                await ended(mover)
                await mover.start("memory:a", purge_target=True, rate=0)
                assert (await ended(mover))["phase"] == "COMPLETED"
                await ended(peer)

    run_simulated(story())


def test_after_the_refusal_of_a_participant_the_next_attempt_starts_at_once() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (other, peer):
            await store.put("/x", b"", expected=ABSENT)
            async with other.gate.permit():  # an operation that does not end
                await mover.start("memory:b")
                assert (await ended(peer))["phase"] == "FAILED"
            began = cluster.clock.monotonic()
            await peer.start("memory:c")
            assert cluster.clock.monotonic() - began < 2
            assert (await ended(peer))["phase"] == "COMPLETED"

    run_simulated(story())


@pytest.mark.parametrize("target", ["memory:b", "memory:c"])
def test_after_the_death_of_a_coordinator_the_next_attempt_starts_as_soon_as_it_has_failed(target: str) -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p2") as (_, peer):
            async with cluster.process("p1") as (store, mover):
                for number in range(2_000):
                    await store.put(f"/tree/{number}", b"v", expected=ABSENT)
                await mover.start("memory:b", rate=500)
                await asyncio.sleep(1)
                for process, _, real in cluster.stores:
                    if process == "p1":
                        real.crash()
                assert (await ended(peer))["phase"] == "FAILED"
                await peer.start(target, purge_target=True, rate=0)
                status = await ended(peer)
                assert (status["phase"], status["attempt"]) == ("COMPLETED", 2)
            assert len(await cluster.tree(target)) == 2_000

    run_simulated(story())
