"""The port to segment owners: one contract that the model in memory, a broker alone and two brokers keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.controller.segment_host import (
    ClearBacklog,
    CloseReader,
    Create,
    CreateCursor,
    CursorMissing,
    CursorSpec,
    Delete,
    DeleteCursor,
    Done,
    Drained,
    Fence,
    FencingToken,
    GrantReader,
    OtherIncarnation,
    Refilled,
    Seal,
    SealFacts,
    Seek,
    SegmentMissing,
    SegmentRef,
    StaleRequest,
    StaleTerm,
    Start,
    Status,
)
from anabranch.model.position import EARLIEST
from tests.support.in_memory.segment_hosts import SegmentWorld, ref_of, segment_world, split_record, until


@pytest.fixture(params=["memory", "one broker", "two brokers"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SegmentWorld]:
    async with segment_world(request.param, tmp_path) as world:
        await world.host.ask(FencingToken(1, 1), Create("op", parent(world), (CursorSpec("s", Start.EARLIEST),)))
        yield world


def parent(world: SegmentWorld) -> SegmentRef:
    return ref_of(world.topic, split_record().layout[0])


def children(world: SegmentWorld) -> tuple[SegmentRef, ...]:
    return tuple(ref_of(world.topic, one) for one in split_record().planned_children)


async def test_requests_of_a_former_leader_are_refused(world: SegmentWorld) -> None:
    ref = parent(world)
    assert await world.host.ask(FencingToken(2, 1), Fence("op", ref)) == Status(exists=True, cursors=frozenset({"s"}))
    with pytest.raises(StaleTerm):
        await world.host.ask(FencingToken(1, 99), Seal("op", ref, ()))
    await world.publish(ref, 0)


async def test_a_late_creation_does_not_undo_a_deletion(world: SegmentWorld) -> None:
    ref = parent(world)
    assert await world.host.ask(FencingToken(1, 5), Delete("op", ref)) == Done()
    assert not world.exists(ref)
    with pytest.raises(StaleRequest):
        await world.host.ask(FencingToken(1, 4), Create("op", ref, ()))
    assert not world.exists(ref)
    assert await world.host.ask(FencingToken(1, 6), Delete("op", ref)) == Done()
    assert await world.host.ask(FencingToken(2, 1), Create("op", ref, ())) == Done()
    assert await world.host.ask(FencingToken(2, 2), Fence("op", ref)) == Status(exists=True)


async def test_missing_segment_can_be_fenced(world: SegmentWorld) -> None:
    child = children(world)[0]
    assert await world.host.ask(FencingToken(3, 1), Fence("op", child)) == Status(exists=False)
    with pytest.raises(StaleTerm):
        await world.host.ask(FencingToken(2, 1), Create("op", child, ()))
    with pytest.raises(SegmentMissing):
        await world.host.ask(FencingToken(3, 2), CreateCursor("op", child, CursorSpec("s", Start.EARLIEST)))
    assert await world.host.ask(FencingToken(3, 3), DeleteCursor("op", child, "s")) == Done()
    with pytest.raises(StaleRequest):
        await world.host.ask(FencingToken(3, 2), Create("op", child, ()))


async def test_a_seal_is_final_and_answers_the_same_again(world: SegmentWorld) -> None:
    ref = parent(world)
    positions = await world.publish(ref, 0, 4)
    assert EARLIEST not in positions
    facts = await world.host.ask(FencingToken(1, 2), Seal("op", ref, children(world)))
    assert isinstance(facts, SealFacts)
    assert (facts.last_position, facts.operation, facts.sequence_ids) == (positions[-1], "op", (("p", 4),))
    assert await world.host.ask(FencingToken(2, 1), Seal("another", ref, ())) == facts
    status = await world.host.ask(FencingToken(2, 2), Fence("op", ref))
    assert isinstance(status, Status)
    assert status.sealed == facts
    with pytest.raises(StaleTerm):
        await world.host.ask(FencingToken(1, 9), Seal("op", ref, ()))


async def test_the_seal_of_an_empty_segment(world: SegmentWorld) -> None:
    facts = await world.host.ask(FencingToken(1, 2), Seal("op", parent(world), children(world)))
    assert isinstance(facts, SealFacts)
    assert (facts.last_position, facts.sequence_ids) == (EARLIEST, ())
    await until(lambda: world.events == [Drained(parent(world), "s", 0)])


async def test_repeated_publish_is_stored_once(world: SegmentWorld) -> None:
    ref = parent(world)
    await world.publish(ref, 0, 1)
    assert await world.publish(ref, 1) == [EARLIEST]
    assert await world.unread(ref, "s") == [0, 1]


async def test_creation_keeps_cursors_where_they_are(world: SegmentWorld) -> None:
    ref = parent(world)
    await world.publish(ref, 0, 1)
    await world.acknowledge(ref, "s", 1)
    cursors = (CursorSpec("s", Start.EARLIEST), CursorSpec("t", Start.LATEST), CursorSpec("u", Start.EARLIEST))
    await world.host.ask(FencingToken(1, 2), Create("op", ref, cursors))
    assert [await world.unread(ref, one) for one in "stu"] == [[1], [], [0, 1]]


async def test_request_of_another_incarnation_is_refused(world: SegmentWorld) -> None:
    other = SegmentRef(parent(world).name, 2, 0)
    with pytest.raises(OtherIncarnation):
        await world.host.ask(FencingToken(2, 1), Create("op", other, ()))
    assert await world.host.ask(FencingToken(2, 2), Delete("op", other)) == Done()  # what it asks for is so
    assert world.exists(parent(world))
    with pytest.raises(StaleRequest):
        await world.host.ask(FencingToken(2, 1), Fence("op", parent(world)))


async def test_a_seek_is_done_once_per_operation(world: SegmentWorld) -> None:
    ref = parent(world)
    await world.publish(ref, 10, 20, 30)
    await world.host.ask(FencingToken(1, 2), ClearBacklog("clear", ref, "s"))
    assert await world.unread(ref, "s") == []
    await world.host.ask(FencingToken(1, 3), Seek("seek", ref, "s", 0))
    assert await world.unread(ref, "s") == [10, 20, 30]
    await world.acknowledge(ref, "s", 2)
    await world.host.ask(FencingToken(2, 1), Seek("seek", ref, "s", 0))
    assert await world.unread(ref, "s") == [30]
    await world.host.ask(FencingToken(2, 2), ClearBacklog("clear", ref, "s"))
    assert await world.unread(ref, "s") == [30]
    with pytest.raises(CursorMissing):
        await world.host.ask(FencingToken(2, 3), Seek("op", ref, "absent", 0))


async def test_drain_is_reported_once_and_reverted_by_a_seek(world: SegmentWorld) -> None:
    ref = parent(world)
    await world.publish(ref, 1)
    await world.host.ask(FencingToken(1, 2), Seal("op", ref, children(world)))
    assert world.events == []
    await world.acknowledge(ref, "s", 1)
    await until(lambda: world.events == [Drained(ref, "s", 0)])
    await world.host.ask(FencingToken(1, 3), Seek("seek", ref, "s", 0))
    await world.acknowledge(ref, "s", 1)
    await until(lambda: len(world.events) >= 3)
    assert world.events == [Drained(ref, "s", 0), Refilled(ref, "s", 1), Drained(ref, "s", 1)]
    status = await world.host.ask(FencingToken(1, 4), Fence("op", ref))
    assert isinstance(status, Status)
    assert status.drained == {("s", 1)}


async def test_closing_readers_without_readers_succeeds(world: SegmentWorld) -> None:
    assert await world.host.ask(FencingToken(1, 2), CloseReader("op", parent(world), "s", "absent", 3)) == Done()
    assert await world.host.ask(FencingToken(1, 2), CloseReader("op", children(world)[0], "s", "absent", 3)) == Done()
    assert await world.host.ask(FencingToken(1, 3), GrantReader("op", parent(world), "s", "member", 4)) == Done()
    assert await world.host.ask(FencingToken(1, 3), GrantReader("op", children(world)[0], "s", "member", 4)) == Done()
    with pytest.raises(StaleRequest):
        await world.host.ask(FencingToken(1, 1), Fence("op", parent(world)))


async def test_a_deleted_cursor_is_forgotten(world: SegmentWorld) -> None:
    ref = parent(world)
    await world.host.ask(FencingToken(1, 2), Seal("op", ref, ()))
    await until(lambda: world.events == [Drained(ref, "s", 0)])
    assert await world.host.ask(FencingToken(1, 3), DeleteCursor("op", ref, "s")) == Done()
    assert await world.host.ask(FencingToken(1, 4), DeleteCursor("op", ref, "s")) == Done()
    status = await world.host.ask(FencingToken(1, 5), Fence("op", ref))
    assert isinstance(status, Status)
    assert (status.cursors, status.drained) == (frozenset(), frozenset())


def test_hosts_report_their_capabilities(world: SegmentWorld) -> None:
    able = world.host.capabilities
    assert able.has_drain_events and able.has_fencing and able.has_dedup_handover and able.tells_children


async def test_stats_of_segments(world: SegmentWorld) -> None:
    ref, missing = parent(world), children(world)[1]
    await world.publish(ref, 0, 1, 2)
    await world.acknowledge(ref, "s", 1)
    found, nothing, other_life = await world.host.measure((ref, missing, SegmentRef(ref.name, 2, 0)))
    assert found is not None
    assert (found.messages, found.subscriptions["s"].backlog, found.subscriptions["s"].consumers) == (3, 2, 0)
    assert (nothing, other_life) == (None, None)
    assert await world.host.ask(FencingToken(1, 1), Fence("op", ref))  # a look raises no mandate
