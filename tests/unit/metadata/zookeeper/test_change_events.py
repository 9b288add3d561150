"""ZooKeeper's events and nodes as changes, versions and times of the port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from anabranch.metadata.envelope import MAGIC, Numbering, wrap_moved
from anabranch.metadata.interface import ABSENT, ANY, Change, ChangeKind, StoreIncompatible
from anabranch.metadata.watch_fanout import TreeWatch, WatchFanout
from anabranch.metadata.zookeeper.change_events import MISSING, QUEUE_MAX, ChangeEvents, NodeState
from anabranch.metadata.zookeeper.paths import PathMapping
from anabranch.metadata.zookeeper.records import (
    RecentNodes,
    encode_record,
    is_intermediate,
    numbering_of,
    record_of,
    rewrites_needed,
)
from anabranch.zookeeper.jute import Event, EventType, Node, Stat

KEY, HOLDER = NodeState(exists=True, is_intermediate=False), NodeState(exists=True, is_intermediate=True)
CREATED, MODIFIED, DELETED, INVALIDATED = ChangeKind
MADE, GONE_AWAY, SET = EventType.CREATED, EventType.DELETED, EventType.CHANGED


class Scene:
    """Events in, changes out; the test answers the reads."""

    def __init__(self, prefix: str = "/") -> None:
        self.known: set[str] = set()
        self.looks: list[Callable[[NodeState], None]] = []
        self.watches = WatchFanout()
        self.watch = self.watches.add(prefix)
        self.changes = ChangeEvents(
            PathMapping("/c"), self.watches, self.known.__contains__, lambda _, answer: self.looks.append(answer)
        )

    def arrive(self, kind: int, path: str, zxid: int = -1) -> None:
        self.changes.on_event(Event(kind, path, zxid))

    def answer(self, *seen: NodeState) -> None:
        for one in seen:
            self.looks.pop(0)(one)


async def changes_seen(watch: TreeWatch) -> list[Change]:
    watch.close()
    return [change async for change in watch]


async def test_intermediate_nodes_are_not_reported() -> None:
    scene = Scene()
    for event in ((MADE, "/c/t"), (MADE, "/c/t/a"), (GONE_AWAY, "/c/t/a"), (GONE_AWAY, "/c/t")):
        scene.arrive(*event)
    scene.answer(HOLDER, KEY, MISSING, MISSING)
    assert await changes_seen(scene.watch) == [Change(CREATED, "/t/a"), Change(DELETED, "/t/a")]


async def test_intermediate_node_becoming_a_key_is_created() -> None:
    scene = Scene()
    scene.arrive(MADE, "/c/t")
    scene.answer(HOLDER)
    for seen in (KEY, KEY, HOLDER, HOLDER):
        scene.arrive(SET, "/c/t")
        scene.answer(seen)
    assert await changes_seen(scene.watch) == [Change(CREATED, "/t"), Change(MODIFIED, "/t"), Change(DELETED, "/t")]


async def test_node_known_as_intermediate_at_the_event_counts() -> None:
    scene = Scene()
    scene.known.add("/c/t")
    scene.arrive(SET, "/c/t")
    scene.known.clear()  # the answer to the write comes before that to the look
    scene.answer(KEY)
    assert await changes_seen(scene.watch) == [Change(CREATED, "/t")]


async def test_event_order_is_kept_while_reads_are_pending() -> None:
    scene = Scene()
    scene.arrive(MADE, "/c/a")
    scene.arrive(GONE_AWAY, "/c/b")
    scene.arrive(SET, "/c/a")
    scene.looks.pop(2)(KEY)
    scene.looks.pop(1)(MISSING)
    before = list(scene.watch._changes)
    scene.answer(KEY)
    assert before == []
    assert await changes_seen(scene.watch) == [Change(CREATED, "/a"), Change(DELETED, "/b"), Change(MODIFIED, "/a")]


async def test_node_deleted_meanwhile_is_still_reported() -> None:
    scene = Scene()
    for kind in (MADE, SET, GONE_AWAY):
        scene.arrive(kind, "/c/a")
    scene.answer(MISSING, MISSING, MISSING)
    assert [change.kind for change in await changes_seen(scene.watch)] == [CREATED, MODIFIED, DELETED]


async def test_a_node_replaced_in_one_transaction_is_one_change() -> None:
    scene = Scene()
    for kind in (GONE_AWAY, MADE, SET, SET):
        scene.arrive(kind, "/c/a", zxid=7)
    scene.arrive(SET, "/c/a", zxid=8)
    scene.answer(KEY, KEY)
    assert await changes_seen(scene.watch) == [Change(MODIFIED, "/a"), Change(MODIFIED, "/a")]


async def test_different_transactions_are_kept_apart() -> None:
    scene = Scene()
    scene.arrive(GONE_AWAY, "/c/a", zxid=7)
    scene.arrive(MADE, "/c/a", zxid=8)
    scene.answer(KEY, KEY)
    assert [change.kind for change in await changes_seen(scene.watch)] == [DELETED, CREATED]


async def test_unwatched_nodes_are_not_read() -> None:
    scene = Scene("/t")
    for path in ("/c/other", "/x/t/a", "/c/tt", "/c/.meta/epoch"):
        scene.arrive(MADE, path)
    scene.arrive(99, "/c/t/a")
    assert scene.looks == []


async def test_gap_or_full_queue_invalidates_everything() -> None:
    scene = Scene("/t")
    for number in range(QUEUE_MAX + 1):
        scene.arrive(MADE, f"/c/t/{number}")
    assert await asyncio.wait_for(anext(scene.watch), 5) == Change(INVALIDATED, "/t")
    scene.answer(KEY)  # too late: what it belonged to is forgotten
    assert await changes_seen(scene.watch) == []


def stat(version: int = 0, owner: int = 0, created_ms: int = 10, modified_ms: int = 20, children: int = 0) -> Stat:
    return Stat(1, 2, created_ms, modified_ms, version, 0, 0, owner, 0, children, 0)


def test_records() -> None:
    plain = record_of(Node(b"v", stat(3)), Numbering(100, 0))
    assert plain is not None and (plain.value, plain.version, plain.created_ms, plain.modified_ms) == (
        b"v",
        103,
        10,
        20,
    )
    assert record_of(Node(None, stat()), Numbering()) is None
    assert record_of(Node(b"", stat()), Numbering()) is not None
    foreign = record_of(Node(None, stat(owner=5)), Numbering())
    assert foreign is not None and foreign.ephemeral
    moved = record_of(Node(wrap_moved(b"v", 7, 1, 2), stat(3)), Numbering(100, 0))
    assert moved is not None and (moved.value, moved.version, moved.created_ms, moved.modified_ms) == (b"v", 7, 1, 2)


@pytest.mark.parametrize("value", [b"", b"v", MAGIC, wrap_moved(b"x", 1, 2, 3)])
@pytest.mark.parametrize(
    ("old", "owner", "created_ms"),
    [
        (None, 0, 10),
        (Node(None, stat()), 0, 20),  # a holder becomes a record now
        (Node(b"old", stat()), 0, 10),
        (Node(b"old", stat(created_ms=4)), 9, 4),  # another node takes its place
        (Node(wrap_moved(b"old", 7, 5, 6), stat()), 0, 5),
        (Node(wrap_moved(b"old", 7, 5, 6), stat()), 9, 5),
        (Node(encode_record(b"", Node(None, stat()), 0), stat(modified_ms=15)), 0, 15),
    ],
)
def test_encoded_record_keeps_value_and_creation_time(
    value: bytes, old: Node | None, owner: int, created_ms: int
) -> None:
    data = encode_record(value, old, owner)
    found = record_of(Node(data, stat(1, owner)), Numbering())
    assert found is not None
    assert (found.value, found.version, found.created_ms, found.modified_ms) == (value, 1, created_ms, 20)


def test_a_replacement_counts_on_from_the_old_version() -> None:
    assert [rewrites_needed(stat(version), 50, 100_000, 100) for version in (0, 1, 99, 5000)] == [1, 2, 100, 100]
    assert rewrites_needed(stat(5000), 50, 1000, 100) == 20
    assert rewrites_needed(stat(5000), 50, -1, 100) == 1


def test_recent_record_saves_a_read_only_where_safe() -> None:
    known, numbering = RecentNodes(), Numbering(100, 0)
    known.note("/a", b"v", stat(5))
    assert known.version_for("/a", 105, 0, numbering) == 5
    assert known.version_for("/a", ANY, 0, numbering) == 5
    for expected in (ABSENT, 5, 106, -1):
        assert known.version_for("/a", expected, 0, numbering) is None
    assert known.version_for("/a", 105, 7, numbering) is None  # it lives with another session
    for data, version in (
        (b"v", 0),
        (None, 5),
        (wrap_moved(b"v", 1, 2, 3), 5),
        (encode_record(b"v", Node(None, stat()), 0), 5),
    ):
        known.note("/a", data, stat(version))
        assert known.version_for("/a", ANY, 0, numbering) is None
        assert known.is_intermediate("/a") == (data is None)
    known.note("/a", b"v", stat(5))
    known.forget("/a")
    assert known.version_for("/a", ANY, 0, numbering) is None


def test_epochs() -> None:
    assert numbering_of(None) == Numbering()
    assert numbering_of(Node(Numbering(5, 0).to_bytes(), stat())) == Numbering(5, 0)
    for wrong in (b"", b"x y", b"1", b"1 2 3"):
        with pytest.raises(StoreIncompatible):
            numbering_of(Node(wrong, stat()))
    assert is_intermediate(Node(None, stat())) and not is_intermediate(Node(b"", stat()))
