"""Metadata on real ensembles of three: stores on different members agree. Failures are tested in `test_faults.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from anabranch.metadata.interface import ABSENT, ANY, ChangeKind, Expected, MetadataStore, VersionMismatch
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from tests import services
from tests.support.in_memory.metadata_stores import keys_below, kinds_of, must_get, params, value_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=params(["zk", "etcd", "oxia"]))
def ensemble(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.Cluster]:
    folder: Path = tmp_path_factory.mktemp(f"three-{request.param}")
    with services.cluster(request.param, folder, size=3) as started:
        yield started


@pytest.fixture
async def members(ensemble: services.Cluster, request: pytest.FixtureRequest) -> AsyncIterator[list[MetadataStore]]:
    """One store per member, each connected to that member only, below a path of the test."""
    place = ("default/" if ensemble.scheme == "oxia" else "") + request.node.originalname
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_store(f"{ensemble.scheme}://{node.address}/{place}", SystemClock()))
            for node in ensemble.nodes
        ]


async def test_sync_shows_what_others_wrote_elsewhere(members: list[MetadataStore]) -> None:
    for number in range(60):
        writer, reader = members[number % 3], members[(number + 1) % 3]
        version = await writer.put("/a", b"%d" % number, expected=ANY)
        await reader.sync()
        found = await must_get(reader, "/a")
        assert (found.value, found.version) == (b"%d" % number, version)


async def test_one_of_three_members_wins_each_round(members: list[MetadataStore]) -> None:
    expected: Expected = ABSENT
    for number in range(20):
        results = await asyncio.gather(
            *(member.put("/a", b"%d" % i, expected=expected) for i, member in enumerate(members)),
            return_exceptions=True,
        )
        ((winner, version),) = [(i, result) for i, result in enumerate(results) if isinstance(result, int)]
        assert sum(isinstance(result, VersionMismatch) for result in results) == 2
        expected = version
        reader = members[number % 3]
        await reader.sync()
        found = await must_get(reader, "/a")
        assert (found.value, found.version) == (b"%d" % winner, version)


async def test_own_writes_are_read_at_once(members: list[MetadataStore]) -> None:
    for member in members:
        for number in range(20):
            version = await member.put("/own", b"%d" % number, expected=ANY)
            assert (await must_get(member, "/own")).version == version


async def test_ephemeral_keys_appear_and_vanish_on_all_stores(members: list[MetadataStore]) -> None:
    sessions = [await member.open_session(10_000) for member in members]
    for number, (member, session) in enumerate(zip(members, sessions, strict=True)):
        await member.put(f"/live/{number}", b"", expected=ABSENT, session=session)
    for member in members:
        await member.sync()
        assert await member.children("/live") == ["0", "1", "2"]
    await sessions[0].close()
    for member in members:
        await member.sync()
        assert await member.children("/live") == ["1", "2"]


async def test_watches_report_writes_of_other_stores(members: list[MetadataStore]) -> None:
    watches = [member.watch("/w") for member in members]
    version = await members[0].put("/w/a", b"1", expected=ABSENT)
    await members[1].put("/w/a", b"2", expected=version)
    await members[2].sync()
    await members[2].delete("/w/a", expected=ANY)
    for watch in watches:
        assert await kinds_of(watch, "/w/a", 3) == [ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED]


async def test_bulk_written_here_is_read_there(members: list[MetadataStore]) -> None:
    await members[0].raise_versions(1000)
    await members[1].sync()  # after it at the latest, everybody knows
    version = await members[1].put("/plain", b"", expected=ABSENT)
    assert version > 1000
    found = await must_get(members[1], "/plain")
    await members[2].bulk_write([(f"/moved/{i:03}", found) for i in range(300)], preserve=False)
    await members[0].sync()
    assert len(await keys_below(members[0], "/moved")) == 300
    assert await value_of(members[0], "/plain") == b""
