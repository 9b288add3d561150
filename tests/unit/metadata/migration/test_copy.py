"""The copy of a tree: pages by number and size, writes that overlap with reads, estimates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.metadata.interface import ABSENT, Item, StoreUnavailable, Versioned
from anabranch.metadata.memory.faults import FINE, Fate, Kind, Loss, NoFaults, Script
from anabranch.metadata.migration import copy
from anabranch.metadata.migration.copy import ChangedKeys, TreeCopy, pages_of
from anabranch.metadata.migration.pacing import UNLIMITED, Pace
from anabranch.metadata.migration.record import Counts, MigrationRecord, Phase, SubPhase
from tests.support.in_memory.metadata_migration import Cluster
from tests.support.in_memory.simulated_loop import run_simulated


def item(number: int, size: int = 1) -> Item:
    return f"/{number}", Versioned(b"x" * size, 1, 1, 1, False)


def sizes(items: list[list[Item]], records: int) -> list[int]:
    async def scan() -> AsyncIterator[list[Item]]:
        for one in items:
            yield one

    async def collect() -> list[list[Item]]:
        return [page async for page in pages_of(scan(), records)]

    pages = asyncio.run(collect())
    assert [one for page in pages for one in page] == [one for page in items for one in page]
    return [len(page) for page in pages]


def test_small_pages_of_a_scan_are_joined_and_large_ones_cut() -> None:
    assert sizes([[item(n)] for n in range(7)], 3) == [3, 3, 1]
    assert sizes([[item(n) for n in range(7)], []], 3) == [3, 3, 1]
    assert sizes([], 3) == []


def test_a_page_of_large_values_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "PAGE_BYTES", 100)
    assert sizes([[item(n, 60) for n in range(5)]], 1000) == [2, 2, 1]


def pace(cluster: Cluster) -> Pace:
    return Pace(cluster.clock, UNLIMITED)


def test_the_next_page_is_read_while_others_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "page_records", 10)

    async def story() -> None:
        cluster = Cluster()
        async with cluster.open("memory:a") as source:
            for number in range(100):
                await source.put(f"/x/{number}", b"%d" % number, expected=ABSENT)
            cluster.faults = Script().then(Kind.BULK, FINE, *[Fate(request_s=1.0) for _ in range(10)])
            async with cluster.open("memory:b") as target:
                await target.raise_versions(1_000)
                changed = ChangedKeys(source.watch("/"))
                made = TreeCopy(source, target, changed, pace(cluster), lambda: None)
                began = cluster.clock.monotonic()
                await made.copy_tree()
                assert cluster.clock.monotonic() - began == pytest.approx(5.0, abs=0.2), "two pages at a time"
            cluster.faults = NoFaults()
            assert await cluster.tree("memory:b") == await cluster.tree("memory:a")
            assert made.counts == Counts(records=100, value_bytes=190, expected=100)
            await changed.close()

    run_simulated(story())


def test_a_write_that_fails_ends_the_copy_and_leaves_no_write_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "page_records", 10)

    async def story() -> None:
        cluster = Cluster()
        async with cluster.open("memory:a") as source:
            for number in range(100):
                await source.put(f"/x/{number}", b"", expected=ABSENT)
            cluster.faults = faults = Script()
            async with cluster.open("memory:b") as target:
                await target.raise_versions(1_000)
                changed = ChangedKeys(source.watch("/"))
                faults.then(Kind.BULK, FINE, Fate(loss=Loss.REFUSED), Fate(request_s=60.0))
                with pytest.raises(StoreUnavailable):
                    await TreeCopy(source, target, changed, pace(cluster), lambda: None).copy_tree()
                before = len(await cluster.tree("memory:b"))
                await asyncio.sleep(120)
                assert len(await cluster.tree("memory:b")) == before < 40
                await changed.close()
            cluster.faults = NoFaults()

    run_simulated(story())


@pytest.mark.parametrize(
    ("step", "counts", "rate", "rest_s"),
    [
        (SubPhase.PRE_COPY, Counts(records=500, expected=2_000), 50.0, 30.0),
        (SubPhase.PRE_COPY, Counts(records=500), 50.0, None),
        (SubPhase.PRE_COPY, Counts(records=500, expected=400), 50.0, 0.0),
        (SubPhase.PRE_COPY, Counts(expected=400), 0.0, None),
        (SubPhase.VERIFY_TREE, Counts(records=500, expected=400, verified=250), 25.0, 10.0),
        (SubPhase.CLOSE_GATES, Counts(records=500, expected=500, verified=500), 50.0, None),
    ],
)
def test_estimate_of_the_rest(step: SubPhase, counts: Counts, rate: float, rest_s: float | None) -> None:
    record = MigrationRecord(Phase.NOT_STARTED, "memory:b", sub_phase=step, times={str(step): 1_000}, counts=counts)
    assert record.rate(11_000) == (rate, rest_s)
