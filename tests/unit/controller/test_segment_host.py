"""The port to segment owners, on its in-memory model: fencing tokens, idempotence, incarnations, cursors, drains."""

from __future__ import annotations

import pytest

from anabranch.controller.segment_host import (
    ClearBacklog,
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
    HostEvent,
    OtherIncarnation,
    Refilled,
    Seal,
    SealFacts,
    Seek,
    SegmentMissing,
    SegmentRef,
    SegmentSealed,
    StaleRequest,
    StaleTerm,
    Start,
    Status,
)
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, Position
from tests.support.models.memory_segment_host import MemoryHost, Shelf

NAME = TopicName.parse("segment://public/default/orders/0000-ffff-0")
REF = SegmentRef(NAME, 1, 0)
CHILD = SegmentRef(TopicName.parse("segment://public/default/orders/0000-ffff-1"), 1, 1)


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    shelf.apply(FencingToken(1, 1), Create("op", REF, (CursorSpec("s", Start.EARLIEST),)), 0)
    return shelf


def publish(shelf: Shelf, *sequence_ids: int, at_ms: int = 0) -> None:
    for one in sequence_ids:
        shelf.publish(NAME, "p", one, b"x", at_ms or one)


def test_request_of_a_former_leader_is_refused(shelf: Shelf) -> None:
    assert shelf.apply(FencingToken(2, 1), Fence("op", REF), 0) == Status(exists=True, cursors=frozenset({"s"}))
    with pytest.raises(StaleTerm):
        shelf.apply(FencingToken(1, 99), Seal("op", REF, ()), 0)
    publish(shelf, 0)


def test_late_create_does_not_undo_a_delete(shelf: Shelf) -> None:
    """The fence outlives the segment."""
    shelf.apply(FencingToken(1, 5), Delete("op", REF), 0)
    with pytest.raises(StaleRequest):
        shelf.apply(FencingToken(1, 4), Create("op", REF, ()), 0)
    assert shelf.segments == {}
    assert shelf.apply(FencingToken(2, 1), Create("op", REF, ()), 0) == Done()


def test_fence_of_a_missing_segment_is_remembered(shelf: Shelf) -> None:
    assert shelf.apply(FencingToken(3, 1), Fence("op", CHILD), 0) == Status(exists=False)
    with pytest.raises(StaleTerm):
        shelf.apply(FencingToken(2, 1), Create("op", CHILD, ()), 0)


def test_repeated_seal_gets_the_same_answer(shelf: Shelf) -> None:
    publish(shelf, 0, 4)
    facts = shelf.apply(FencingToken(1, 2), Seal("op", REF, (CHILD,)), 70)
    assert facts == SealFacts(Position(0, 1), 70, "op", (("p", 4),))
    assert shelf.apply(FencingToken(2, 1), Seal("op", REF, (CHILD,)), 99) == facts
    assert shelf.children_of(NAME) == (CHILD,)
    with pytest.raises(SegmentSealed):
        publish(shelf, 5)
    assert shelf.publish(NAME, "p", 4, b"x", 0) == EARLIEST  # it was persisted: confirmed again, not stored again


def test_repeated_create_keeps_cursor_positions(shelf: Shelf) -> None:
    publish(shelf, 0, 1)
    shelf.acknowledge(NAME, "s", Position(0, 0))
    cursors = (CursorSpec("s", Start.EARLIEST), CursorSpec("t", Start.LATEST))
    shelf.apply(FencingToken(1, 2), Create("op", REF, cursors), 0)
    assert len(shelf.unread(NAME, "s")) == 1
    assert shelf.unread(NAME, "t") == []


def test_request_for_another_incarnation_is_refused(shelf: Shelf) -> None:
    other = SegmentRef(NAME, 2, 0)
    with pytest.raises(OtherIncarnation):
        shelf.apply(FencingToken(2, 1), Create("op", other, ()), 0)
    assert shelf.apply(FencingToken(2, 2), Delete("op", other), 0) == Done()  # what it asks for is so
    assert NAME in shelf.segments


def test_seek_runs_once_per_operation_id(shelf: Shelf) -> None:
    publish(shelf, 10, 20, 30)
    shelf.apply(FencingToken(1, 2), ClearBacklog("clear", REF, "s"), 0)
    assert shelf.unread(NAME, "s") == []
    shelf.apply(FencingToken(1, 3), Seek("seek", REF, "s", 15), 0)
    assert [entry.sequence_id for _, entry in shelf.unread(NAME, "s")] == [20, 30]
    shelf.acknowledge(NAME, "s", Position(0, 1))
    shelf.apply(FencingToken(2, 1), Seek("seek", REF, "s", 15), 0)
    assert [entry.sequence_id for _, entry in shelf.unread(NAME, "s")] == [30]


def test_drained_is_reported_once_and_refilled_by_a_seek(shelf: Shelf) -> None:
    events: list[HostEvent] = []
    stop = shelf.listen(events.append)
    publish(shelf, 1)
    shelf.apply(FencingToken(1, 2), Seal("op", REF, ()), 0)
    assert events == []
    shelf.acknowledge(NAME, "s", Position(0, 0))
    shelf.acknowledge(NAME, "s", Position(0, 0))
    shelf.apply(FencingToken(1, 3), Seek("seek", REF, "s", 0), 0)
    shelf.acknowledge(NAME, "s", Position(0, 0))
    assert events == [Drained(REF, "s", 0), Refilled(REF, "s", 1), Drained(REF, "s", 1)]
    status = shelf.apply(FencingToken(1, 4), Fence("op", REF), 0)
    assert isinstance(status, Status)
    assert status.drained == {("s", 1)}
    stop()
    shelf.apply(FencingToken(1, 5), CreateCursor("op", REF, CursorSpec("t", Start.LATEST)), 0)
    assert len(events) == 3


async def test_the_port(shelf: Shelf) -> None:
    host = MemoryHost(shelf, lambda: 42)
    assert host.capabilities.has_fencing
    facts = await host.ask(FencingToken(1, 2), Seal("op", REF, ()))
    assert isinstance(facts, SealFacts)
    assert facts.sealed_at_ms == 42
    with pytest.raises(SegmentMissing):
        await host.ask(FencingToken(1, 1), CreateCursor("op", CHILD, CursorSpec("s", Start.EARLIEST)))
    assert await host.ask(FencingToken(1, 2), DeleteCursor("op", CHILD, "s")) == Done()
    with pytest.raises(CursorMissing):
        await host.ask(FencingToken(1, 3), Seek("op", REF, "nobody", 0))
