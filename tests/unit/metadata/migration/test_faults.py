"""Single faults of a migration, each with its outcome. Many at once: tests/simulation/test_metadata_migration.py."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from anabranch.metadata.interface import ABSENT, ANY, OutcomeUnknown, StoreUnavailable
from anabranch.metadata.memory.faults import FINE, Fate, Kind, Loss, NoFaults, Script
from anabranch.metadata.migration.follow import NotComplete, open_current
from anabranch.metadata.migration.participant import read_participants
from anabranch.metadata.migration.participant_state import Stage
from anabranch.metadata.migration.record import (
    COORDINATOR,
    MIGRATION,
    TARGET_LEASE,
    MigrationRecord,
    Phase,
    Role,
    SubPhase,
)
from anabranch.metadata.migration.service import MigrationRunning, NoMigration
from anabranch.metadata.transfer import TargetNotEmpty
from tests.support.in_memory.metadata_migration import Cluster, ended
from tests.support.in_memory.simulated_loop import run_simulated


async def record_in(cluster: Cluster, url: str) -> MigrationRecord | None:
    async with cluster.open(url) as store:
        found = await store.get(MIGRATION)
    return None if found is None else MigrationRecord.from_bytes(found.value)


def test_the_store_of_a_cluster_whose_migration_failed_is_never_purged() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover):
            await store.put("/mine", b"", expected=ABSENT)
            async with cluster.open("memory:theirs") as theirs:
                await theirs.put("/theirs", b"", expected=ABSENT)
                failed = MigrationRecord(Phase.FAILED, "memory:z", "memory:theirs", run="x", error="no answer")
                await theirs.put(MIGRATION, failed.to_bytes(), expected=ABSENT)
            with pytest.raises(TargetNotEmpty):
                await mover.start("memory:theirs", purge_target=True)
            assert set(await cluster.tree("memory:theirs")) == {"/theirs"}

    run_simulated(story())


def test_a_target_that_another_migration_writes_to_is_refused() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("q1", "memory:other") as (_, rival):
            for number in range(500):
                await store.put(f"/mine/{number}", b"", expected=ABSENT)
            await mover.start("memory:b", rate=100)
            await asyncio.sleep(1)
            with pytest.raises(MigrationRunning):
                await rival.start("memory:b", purge_target=True)
            assert (await ended(mover))["phase"] == "COMPLETED"
            assert len(await cluster.tree("memory:b")) == 500
            async with cluster.open("memory:b") as moved:
                assert await moved.get(TARGET_LEASE) is None
            with pytest.raises(TargetNotEmpty):
                await rival.start("memory:b", purge_target=True)

    run_simulated(story())


def test_the_mark_that_a_dead_cluster_did_not_write_is_written_at_the_next_start() -> None:
    for url in ("memory:a", "memory:b"):

        async def story(url: str = url) -> None:
            cluster = Cluster()
            async with cluster.process("p1") as (store, mover):
                await store.put("/x", b"", expected=ABSENT)
                await mover.start("memory:b")
                assert (await ended(mover))["phase"] == "COMPLETED"
                run = (await mover.status())["run"]
            async with cluster.open("memory:b") as target:  # as it was before the mark
                tag = MigrationRecord(Phase.COPYING, "memory:b", "memory:a", Role.TARGET, 1, str(run))
                await target.put(MIGRATION, tag.to_bytes(), expected=ANY)
            found, real = await open_current(url, cluster.open, 1)
            assert found == "memory:b"
            await real.close()
            record = await record_in(cluster, "memory:b")
            assert record is not None and (record.phase, record.role) == (Phase.COMPLETED, Role.TARGET)
            async with cluster.open("memory:b") as target:  # a tag of another attempt stays
                await target.put(MIGRATION, replace(tag, run="other").to_bytes(), expected=ANY)
            with pytest.raises(NotComplete):  # and no end is found
                await open_current(url, cluster.open, 1)

        run_simulated(story())


def test_a_store_that_was_moved_from_is_no_source_again() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover):
            record = MigrationRecord(Phase.COMPLETED, "memory:b", "memory:a", run="x")
            await store.inner.put(MIGRATION, record.to_bytes(), expected=ANY)  # not seen yet
            with pytest.raises(MigrationRunning, match="completed"):
                await mover.start("memory:c")
            again = await record_in(cluster, "memory:a")
            assert again == record

    run_simulated(story())


def test_the_decision_is_found_in_the_target_when_the_source_is_gone() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (_, mover), cluster.process("p2") as (other, peer):
            session = await other.open_session(20_000)
            await other.put("/lock", b"p2", expected=ABSENT, session=session)
            await mover.start("memory:b")
            async with asyncio.timeout(60):
                while peer.participant.stage is not Stage.READY:  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(0.0001)
            for process, url, real in cluster.stores:
                if process == "p2" and url == "memory:a":
                    real.cut()  # for ever
            assert (await ended(mover))["phase"] == "COMPLETED"
            async with asyncio.timeout(30):
                while peer.url != "memory:b":  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
            await other.put("/after", b"", expected=ABSENT)
            assert not session.is_lost
            assert "/after" in await cluster.tree("memory:b")

    run_simulated(story())


def test_a_process_that_was_not_waited_for_confirms_and_shows_nothing_of_the_old_store() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (_, mover), cluster.process("p2") as (late, peer):
            mine = [real for process, url, real in cluster.stores if process == "p2" and url == "memory:a"]
            peer.participant._tasks.cancel()  # stopped: it follows nothing and keeps no session
            for real in mine:
                for session in tuple(real._sessions):
                    real.expire(session)
            await mover.start("memory:b")
            assert (await ended(mover))["phase"] == "COMPLETED"
            with pytest.raises(OutcomeUnknown):
                await late.put("/late", b"", expected=ABSENT)
            with pytest.raises(StoreUnavailable):
                await late.get("/late")
            with pytest.raises(StoreUnavailable):
                await late.children("/")
            with pytest.raises(StoreUnavailable):
                await late.sync()
            assert "/late" not in await cluster.tree("memory:b")

    run_simulated(story())


def test_versions_of_ephemeral_keys_work_after_two_moves() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover):
            session = await store.open_session(5_000)
            held = await store.put("/lock", b"1", expected=ABSENT, session=session)
            for url in ("memory:b", "memory:c"):
                await mover.start(url)
                assert (await ended(mover))["phase"] == "COMPLETED"
            await store.put("/lock", b"2", expected=held, session=session)
            assert not session.is_lost

    run_simulated(story())


def test_a_failed_way_back_leaves_the_marker_that_names_the_store_in_use() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover):
            for number in range(300):
                await store.put(f"/x/{number}", b"", expected=ABSENT)
            await mover.start("memory:b")
            assert (await ended(mover))["phase"] == "COMPLETED"
            before = await record_in(cluster, "memory:a")
            await mover.start("memory:a", purge_target=True, rate=100)
            await asyncio.sleep(1)
            found, real = await open_current("memory:a", cluster.open, 1)
            await real.close()
            assert found == "memory:b", "an incomplete target names its source"
            await mover.abort()
            await ended(mover)
            async with asyncio.timeout(30):
                while await record_in(cluster, "memory:a") != before:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.1)
            found, real = await open_current("memory:a", cluster.open, 1)
            await real.close()
            assert found == "memory:b"
            assert await cluster.tree("memory:a") == {}

    run_simulated(story())


def test_a_start_that_fails_after_it_emptied_a_former_source_leaves_the_way_to_the_store_in_use() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover):
            await store.put("/x", b"", expected=ABSENT)
            await mover.start("memory:b")
            assert (await ended(mover))["phase"] == "COMPLETED"
            cluster.faults = Script().then(Kind.BULK, FINE, Fate(loss=Loss.REFUSED))  # purge, raise_versions
            with pytest.raises(StoreUnavailable):
                await mover.start("memory:a", purge_target=True)
            cluster.faults = NoFaults()
            assert await cluster.tree("memory:a") == {}
            assert await record_in(cluster, "memory:a") is None
            found, real = await open_current("memory:a", cluster.open, 1)
            await real.close()
            assert found == "memory:b"
            await mover.start("memory:a")
            assert (await ended(mover))["phase"] == "COMPLETED"
            found, real = await open_current("memory:b", cluster.open, 1)
            await real.close()
            assert found == "memory:a"

    run_simulated(story())


def test_abort_returns_when_the_attempt_has_failed_and_refuses_when_it_has_completed() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (store, mover), cluster.process("p2") as (_, peer):
            for number in range(200):
                await store.put(f"/x/{number}", b"", expected=ABSENT)
            for by in (mover, peer):
                await mover.start("memory:b", rate=100, purge_target=True)
                await by.abort()
                assert (await mover.status())["phase"] == "FAILED"
                with pytest.raises(NoMigration):
                    await by.abort()
                async with asyncio.timeout(30):
                    while await record_in(cluster, "memory:b") is not None:  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0.1)

    run_simulated(story())


def test_a_process_that_could_not_register_registers_at_the_next_attempt() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.alone("p1") as (store, mover):
            await store.put("/x", b"", expected=ABSENT)
            (real,) = [real for _, url, real in cluster.stores if url == "memory:a"]
            real.cut()
            with pytest.raises((StoreUnavailable, TimeoutError)):
                await mover.start("memory:b")
            real.heal()
            await mover.start("memory:b")
            assert (await ended(mover))["phase"] == "COMPLETED"
            assert set(await read_participants(store.inner)) == {"p1"}
            await store.put("/y", b"", expected=ABSENT)
            assert set(await cluster.tree("memory:b")) == {"/x", "/y"}

    run_simulated(story())


def test_status_says_switched_only_when_every_live_process_has() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with cluster.process("p1") as (_, mover), cluster.process("p2") as (other, peer):
            await mover.start("memory:b")
            seen: list[tuple[str, bool]] = []
            async with asyncio.timeout(60):
                while not seen or not seen[-1][1]:
                    status = await mover.status()
                    seen.append((peer.url, bool(status.get("allSwitched"))))
                    await asyncio.sleep(0.0005)
            assert [url for url, is_said in seen if is_said] == ["memory:b"]
            assert status["subPhase"] in (SubPhase.SWITCH, SubPhase.DONE)
            await other.put("/x", b"", expected=ABSENT)

    run_simulated(story())


def test_a_process_that_registers_again_while_it_undoes_is_vouched_for_by_its_next_step_only() -> None:
    """Another attempt may have begun between the reading of the record and the registration."""

    async def story() -> None:
        cluster = Cluster()
        cluster.faults = faults = Script()
        async with cluster.process("p1"), cluster.process("p2") as (_, peer), cluster.open("memory:a") as tool:
            participant = peer.participant
            participant._tasks.cancel()  # its steps are made here
            lease = await tool.open_session(60_000)
            await tool.put(COORDINATOR, b"x", expected=ABSENT, session=lease)
            record = MigrationRecord(Phase.PREPARATION, "memory:b", "memory:a", run="x")
            await tool.put(MIGRATION, record.to_bytes(), expected=ANY)
            await participant._step()
            assert participant.stage is Stage.READY
            await tool.put(MIGRATION, record.failed("aborted", 1).to_bytes(), expected=ANY)
            faults.then(Kind.OPEN_SESSION, Fate(request_s=0.5))
            for process, url, real in cluster.stores:
                if (process, url) == ("p2", "memory:a"):
                    for session in tuple(real._sessions):
                        real.expire(session)
            await participant._step()
            assert participant.stage.name == "IDLE"
            vouched = [participant.is_vouched]
            await participant._step()
            assert [*vouched, participant.is_vouched] == [False, True]

    run_simulated(story())
