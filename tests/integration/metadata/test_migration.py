"""Migrations between real stores with writers at work: every register stays linearizable, no session is lost."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest

from anabranch.metadata.interface import ABSENT, MetadataStore
from anabranch.metadata.migration.record import is_copied
from anabranch.metadata.migration.service import BadTarget
from anabranch.metadata.open import bare_store
from anabranch.metadata.recipes.sequential_keys import put_sequential
from anabranch.runtime.clock import SystemClock
from tests import services
from tests.support.faults.migrating_processes import MigratingProcess, processes
from tests.support.faults.store_workload import Trial
from tests.support.in_memory.metadata_stores import fresh_url

KINDS = ("sqlite", "zk", "etcd", "oxia")
BLOCKED_S_MAX = 10.0
"""The bound that the product promises to writers; how long it really takes is measured by the benchmark."""


async def tree_of(store: MetadataStore) -> dict[str, tuple[bytes, int, int, int]]:
    return {
        key: (found.value, found.version, found.created_ms, found.modified_ms)
        async for page in store.bulk_scan("/")
        for key, found in page
        if is_copied(key) and not found.ephemeral
    }


async def move_through(made: list[MigratingProcess], urls: list[str]) -> None:
    """While writers are at work; `/fixed` is the same everywhere, with versions and times."""
    first = made[0].store
    for number in range(300):
        await first.put(f"/fixed/{number}", b"%d" % number, expected=ABSENT)
    fixed = {key: one for key, one in (await tree_of(first)).items() if key.startswith("/fixed/")}
    number_before = (await put_sequential(first, "/queue/item-", b""))[0]
    for count, url in enumerate(urls):
        status = await made[count % len(made)].move(url, rate=0)
        assert (status["phase"], status["error"]) == ("COMPLETED", None), url
        assert set(status["participants"].values()) == {"SWITCHED"}
        assert status["blockedSeconds"] < BLOCKED_S_MAX
        here = await tree_of(made[-1].store)
        assert {key: one for key, one in here.items() if key.startswith("/fixed/")} == fixed, url
        number_after = (await put_sequential(made[-1].store, "/queue/item-", b""))[0]
        assert number_after > number_before, "a sequence goes on"
        number_before = number_after
        await made[count % len(made)].store.put(
            "/fixed/0", b"0", expected=fixed["/fixed/0"][1]
        )  # a version from before the first move
        fixed["/fixed/0"] = (await tree_of(made[0].store))["/fixed/0"]
        await asyncio.sleep(0.3)


async def run_trial(source: str, urls: list[str]) -> None:
    async with processes(source) as made:
        stores = [one.store for one in made]
        trial = Trial(stores[:2], stores[2], tree="/registers", deadline_s=20.0, pace_s=0.02)
        await trial.run(lambda: move_through(made, urls), recover_s=60.0)


@pytest.mark.slow
@pytest.mark.xdist_group("migration")
async def test_a_chain_through_all_stores_keeps_registers_linearizable(tmp_path: Path) -> None:
    urls = [fresh_url(kind, tmp_path) for kind in ("zk", "etcd", "oxia", "sqlite")]
    await run_trial(fresh_url("sqlite", tmp_path), urls)


@pytest.mark.soak
@pytest.mark.parametrize(("source", "target"), list(product(KINDS, KINDS)))
async def test_every_pair_of_stores(source: str, target: str, tmp_path: Path) -> None:
    await run_trial(fresh_url(source, tmp_path), [fresh_url(target, tmp_path)])


@pytest.mark.slow
@pytest.mark.xdist_group("migration")
@pytest.mark.parametrize("kind", ["zk", "etcd"])
async def test_a_target_inside_the_source_is_refused(kind: str, tmp_path: Path) -> None:
    url = fresh_url(kind, tmp_path)
    async with processes(url, 1) as (one,):
        await one.store.put("/x", b"", expected=ABSENT)
        with pytest.raises(BadTarget, match="inside the store in use, below /inner"):
            await one.migration.start(f"{url}/inner")
        with pytest.raises(BadTarget, match="is the store in use"):
            await one.migration.start(url)
        assert (await one.migration.status())["phase"] == "NOT_STARTED"


@pytest.mark.slow
@pytest.mark.xdist_group("migration")
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sqlite", "etcd"),
        pytest.param("sqlite", "zk", marks=pytest.mark.soak),
        pytest.param("zk", "oxia", marks=pytest.mark.soak),
    ],
)
async def test_a_target_server_that_dies_fails_the_attempt_and_a_second_one_works(
    source: str, target: str, tmp_path: Path
) -> None:
    url = fresh_url(source, tmp_path)
    path = "/default/moved" if target == "oxia" else "/moved"
    with services.cluster(target, tmp_path / "server") as server:
        async with processes(url, deadline_ms=3_000) as made:
            one = made[0]
            for number in range(300):
                await one.store.put(f"/fixed/{number}", b"", expected=ABSENT)
            before = await tree_of(one.store)
            await one.migration.start(f"{server.url}{path}", rate=100)
            await one.wait_step("PRE_COPY")
            await asyncio.sleep(0.5)
            server.kill9()
            status = await one.ended()
            assert status["phase"] == "FAILED", status
            assert await tree_of(one.store) == before
            await made[1].store.put("/after", b"", expected=ABSENT)
            other = fresh_url("sqlite", tmp_path)
            status = await made[2].move(other, rate=0)
            assert (status["phase"], status["attempt"]) == ("COMPLETED", 2), status
            async with bare_store(other, SystemClock()) as moved:
                assert "/after" in await tree_of(moved)


@pytest.mark.slow
@pytest.mark.xdist_group("migration")
@pytest.mark.parametrize("step", ["PRE_COPY", pytest.param("CLOSE_GATES", marks=pytest.mark.soak)])
async def test_a_source_server_that_is_restarted_loses_nothing(step: str, tmp_path: Path) -> None:
    """The attempt fails or completes; writers go on either way."""
    with services.cluster("etcd", tmp_path / "server") as server:
        async with processes(f"{server.url}/mine", deadline_ms=3_000) as made:
            stores = [one.store for one in made]
            for number in range(200):
                await stores[0].put(f"/fixed/{number}", b"", expected=ABSENT)

            async def fault() -> None:
                await made[0].migration.start(fresh_url("sqlite", tmp_path), rate=100)
                await made[0].wait_step(step)
                server.kill9()
                await asyncio.sleep(1)
                await asyncio.to_thread(server.start)
                await made[0].ended()

            trial = Trial(stores[:2], stores[2], tree="/registers", deadline_s=30.0, pace_s=0.02)
            await trial.run(fault, recover_s=90.0, keeps_session=False)
            assert len([key for key in await tree_of(stores[0]) if key.startswith("/fixed/")]) == 200
