"""The pure parts of the Oxia store: key order, shards, batches, shard sessions, notifications, records."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.envelope import Numbering, wrap_moved, wrap_timed
from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    BadKey,
    Change,
    ChangeKind,
    Expected,
    SessionEvent,
    UnknownStore,
    Versioned,
    VersionMismatch,
)
from anabranch.metadata.open import open_store
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.bulk import group_by_shard
from anabranch.metadata.oxia.errors import AnswerUnreadable, Refusal, is_retryable, refusal, was_not_executed
from anabranch.metadata.oxia.key_order import PageMerge, behind, behind_name, below, child_name, order
from anabranch.metadata.oxia.notifications import OwnChanges, read_batch
from anabranch.metadata.oxia.records import Address, Plan, plan_blind, plan_over, versioned, wrap
from anabranch.metadata.oxia.sessions import ShardSessions, granted_ms
from anabranch.metadata.oxia.shard_writer import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Group, split_answer, take_batch
from anabranch.metadata.oxia.shards import RING, Shard, ShardMap, hash_of, read_assignments
from anabranch.runtime.clock import SystemClock

THIRDS = ShardMap(tuple(Shard(i, "h:1", -(-RING * i // 3), -(-RING * (i + 1) // 3) - 1) for i in range(3)))

keys = st.lists(st.text(st.sampled_from("ab-/0é\x01"), min_size=1), min_size=1).map(
    lambda parts: "/" + "/".join(part.strip("/").replace("//", "/") or "x" for part in parts)
)


def cut(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def naive_compare(a: str, b: str) -> int:
    """The rule of the server's source: part by part, and a key that ends at a level comes first."""
    left, right = a.encode().split(b"/"), b.encode().split(b"/")
    for level, (x, y) in enumerate(zip(left, right, strict=False)):
        ends = (level == len(left) - 1, level == len(right) - 1)
        if ends[0] != ends[1]:
            return -1 if ends[0] else 1
        if x != y:
            return -1 if x < y else 1
    return 0


def is_between(start: str, key: str, end: str) -> bool:
    return naive_compare(start, key) <= 0 < naive_compare(end, key)


class TestOrdering:
    @given(keys, keys)
    def test_order_compares_as_the_server_does(self, a: str, b: str) -> None:
        assert (order(a) > order(b)) - (order(a) < order(b)) == naive_compare(a, b)

    @given(keys, keys)
    def test_below_is_the_subtree_without_its_root(self, tree: str, key: str) -> None:
        for root in (tree, ""):
            assert is_between(below(root)[0], key, below(root)[1]) == key.startswith(root + "/")

    @given(keys, keys)
    def test_behind_leaves_out_exactly_that_key(self, a: str, b: str) -> None:
        assert (naive_compare(behind(a), b) <= 0) == (naive_compare(a, b) < 0)

    @given(keys, keys)
    def test_behind_a_name_is_behind_all_below_it(self, name: str, key: str) -> None:
        parent, _, last = name.rpartition("/")
        if key.startswith(name + "/"):
            assert naive_compare(key, behind_name(parent, last)) < 0
        elif key.startswith(parent + "/") and "/" in key[len(parent) + 1 :] and naive_compare(key, name + "/") > 0:
            assert naive_compare(key, behind_name(parent, last)) >= 0

    def test_child_name(self) -> None:
        assert child_name("/t", "/t/a/b/c") == child_name("/t", "/t/a") == "a"
        assert child_name("", "/t/a") == "t"

    @given(st.lists(st.lists(keys, max_size=12), min_size=1, max_size=4), st.integers(1, 4))
    def test_merged_pages_are_in_order_and_complete(self, sources: list[list[str]], page: int) -> None:
        merge: PageMerge[str] = PageMerge(range(len(sources)))
        rest = {n: deque(cut(sorted(set(one), key=order), page)) for n, one in enumerate(sources)}
        got: list[str] = []
        while wanted := merge.wants():
            for source in wanted:
                if rest[source]:
                    merge.add(source, ((key, key) for key in rest[source].popleft()))
                else:
                    merge.end(source)
            got.extend(merge.take())
        assert got == sorted((key for one in sources for key in set(one)), key=order)


class TestShards:
    @pytest.mark.parametrize(("key", "expected"), [("foo", 125730186), ("bar", 2687685474), ("baz", 862947621)])
    def test_hash_is_the_servers(self, key: str, expected: int) -> None:
        """Known vectors of Oxia's own tests."""
        assert hash_of(key) == expected

    def test_every_key_has_its_shard(self) -> None:
        assert {THIRDS.of_key(f"/k/{i}").id for i in range(100)} == {0, 1, 2}
        for i in range(100):
            shard = THIRDS.of_key(f"/k/{i}")
            assert shard.low <= hash_of(f"/k/{i}") <= shard.high

    @pytest.mark.parametrize(
        "ranges",
        [
            [],
            [(0, RING - 2)],
            [(1, RING - 1)],
            [(0, 10), (12, RING - 1)],
            [(0, 10), (10, RING - 1)],
            [(0, RING - 1), (0, RING - 1)],
        ],
    )
    def test_shard_map_with_gaps_or_overlaps_is_refused(self, ranges: list[tuple[int, int]]) -> None:
        with pytest.raises(AnswerUnreadable):
            ShardMap(tuple(Shard(i, "h:1", low, high) for i, (low, high) in enumerate(ranges)))

    def test_assignments_of_another_router_or_namespace_are_refused(self) -> None:
        answer = wire.Assignments()
        namespace = answer.namespaces["n"]
        namespace.router = wire.ROUTER_XXHASH3
        namespace.assignments.add(shard=4, leader="h:1").hash_range.high = RING - 1
        assert read_assignments(answer, "n").find(4) == Shard(4, "h:1", 0, RING - 1)
        with pytest.raises(AnswerUnreadable):
            read_assignments(answer, "m")
        namespace.router = 7  # type: ignore[assignment]  # a router of the future
        with pytest.raises(AnswerUnreadable):
            read_assignments(answer, "n")


async def group(*written: str, size: int = 1, deleted: tuple[str, ...] = ()) -> Group:
    puts = [wire.Put(key=key, value=b"x" * size) for key in written]
    return Group(puts, [wire.Delete(key=key) for key in deleted], asyncio.get_running_loop().create_future())


class TestBatches:
    async def test_queued_writes_form_one_batch(self) -> None:
        queue = deque([await group("/a"), await group("/b", deleted=("/c",))])
        assert len(take_batch(queue)) == 2
        assert not queue

    async def test_batch_has_each_key_once_and_keeps_order(self) -> None:
        groups = [await group("/a"), await group(deleted=("/a",)), await group("/b")]
        queue = deque(groups)
        assert take_batch(queue) == groups[:1]
        assert take_batch(queue) == groups[1:]

    async def test_limits(self) -> None:
        queue = deque([await group(f"/{i}") for i in range(BATCH_WRITES_MAX + 5)])
        assert [len(take_batch(queue)), len(take_batch(queue))] == [BATCH_WRITES_MAX, 5]
        queue = deque([await group(f"/{i}", size=BATCH_BYTES_MAX // 2) for i in range(3)])
        assert [len(take_batch(queue)) for _ in range(3)] == [1, 1, 1]
        queue = deque([await group("/big", size=8 * BATCH_BYTES_MAX)])
        assert len(take_batch(queue)) == 1

    async def test_cancelled_write_is_not_sent(self) -> None:
        groups = [await group("/a"), await group("/b")]
        groups[0].future.cancel()
        assert take_batch(deque(groups)) == groups[1:]

    async def test_answers_are_split_by_group_in_order(self) -> None:
        batch = [await group("/a", "/b"), await group(deleted=("/c",)), await group("/d", deleted=("/e",))]
        response = wire.WriteResponse()
        for version in (1, 2, 3):
            response.puts.add().version.version_id = version
        response.deletes.add(status=wire.KEY_NOT_FOUND)
        response.deletes.add(status=wire.OK)
        parts = split_answer(batch, response)
        assert [[put.version.version_id for put in part.puts] for part in parts] == [[1, 2], [], [3]]
        assert [[one.status for one in part.deletes] for part in parts] == [[], [wire.KEY_NOT_FOUND], [wire.OK]]

    async def test_answers_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(AnswerUnreadable):
            split_answer([await group("/a", "/b")], wire.WriteResponse(puts=[wire.PutAnswer()]))

    def test_bulk_groups_are_per_shard_and_without_repeated_keys(self) -> None:
        writes = [wire.Put(key=f"/k/{i % 2500}", value=b"v" * 100) for i in range(5000)]
        made = list(group_by_shard(THIRDS, writes))
        assert sum(len(group.puts) for group in made) == 5000
        for group in made:
            named = [put.key for put in group.puts]
            assert len(set(named)) == len(named) <= BATCH_WRITES_MAX
            assert sum(len(put.value) for put in group.puts) <= BATCH_BYTES_MAX
            assert {THIRDS.of_key(key).id for key in named} == {group.shard}


class TestShardLives:
    def test_oldest_answer_decides_validity(self) -> None:
        lives = ShardSessions(10.0)
        assert lives.valid_until(100.0) == 110.0
        lives.on_answer(0, 101.0)
        lives.on_answer(1, 104.0)
        assert lives.valid_until(200.0) == 111.0
        lives.on_answer(0, 109.0)
        assert lives.valid_until(200.0) == 114.0
        lives.on_answer(0, 102.0)  # an answer that was overtaken takes nothing back
        assert lives.valid_until(200.0) == 114.0

    def test_session_events_report_the_whole_session(self) -> None:
        lives = ShardSessions(10.0)
        assert lives.on_answer(0, 1.0) is lives.on_answer(1, 1.0) is None
        assert lives.on_failure(0) is SessionEvent.DISCONNECTED
        assert lives.on_failure(1) is None
        assert lives.on_failure(0) is None
        assert lives.on_answer(0, 2.0) is None
        assert lives.on_answer(1, 2.0) is SessionEvent.RECONNECTED
        assert lives.on_answer(1, 3.0) is None

    def test_granted(self) -> None:
        assert [granted_ms(asked) for asked in (1, 2_000, 7_000, 10**9)] == [2_000, 2_000, 7_000, 300_000]


def notification_batch(offset: int, *entries: tuple[str, int, int | None]) -> wire.NotificationBatch:
    batch = wire.NotificationBatch(offset=offset)
    for key, kind, version in entries:
        entry = batch.entries.add(key=key)
        entry.value.kind = kind  # type: ignore[assignment]  # kinds of the future too
        if version is not None:
            entry.value.version_id = version
    return batch


class TestNotifications:
    def test_consecutive_batch_is_not_a_gap(self) -> None:
        batch = notification_batch(
            5, ("/a", wire.KEY_CREATED, 1), ("/b", wire.KEY_MODIFIED, 2), ("/c", wire.KEY_DELETED, None)
        )
        found = read_batch(batch, 4)
        kinds = [ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED]
        assert found.changes == [Change(kind, key) for kind, key in zip(kinds, ["/a", "/b", "/c"], strict=True)]
        assert not found.is_gap

    @pytest.mark.parametrize("offset", [4, 6, 100, -1])
    def test_an_offset_that_does_not_follow_on_is_a_gap(self, offset: int) -> None:
        assert read_batch(notification_batch(offset), 4).is_gap

    @pytest.mark.parametrize("kind", [wire.KEY_RANGE_DELETED, 9])
    def test_range_deletion_is_a_gap(self, kind: int) -> None:
        assert read_batch(notification_batch(5, ("/a", kind, None)), 4).is_gap

    async def test_versions_pass_in_order(self) -> None:
        own_changes = OwnChanges()
        assert own_changes.expect_version(3) is None  # no stream, so no wait
        own_changes.is_live = True
        low, high = own_changes.expect_version(3), own_changes.expect_version(5)
        assert low is not None and high is not None
        own_changes.on_published(notification_batch(1, ("/x", wire.KEY_CREATED, 4)))
        assert (low.done(), high.done()) == (True, False)
        assert own_changes.expect_version(4) is None
        own_changes.stop()
        assert high.done()

    async def test_deletes_pass_by_key(self) -> None:
        own_changes = OwnChanges()
        own_changes.is_live = True
        first, second, other = (own_changes.expect_delete(key) for key in ("/a", "/a", "/b"))
        own_changes.on_published(notification_batch(1, ("/a", wire.KEY_DELETED, None)))
        assert (first.done(), second.done(), other.done()) == (True, False, False)
        own_changes.forget_delete("/a", second)
        own_changes.on_published(notification_batch(2, ("/a", wire.KEY_DELETED, None), ("/b", wire.KEY_DELETED, None)))
        assert (second.done(), other.done()) == (False, True)


def record(value: bytes, version: int) -> wire.Record:
    native = wire.RecordVersion(version_id=version, created_ms=10, modified_ms=20)
    return wire.Record(value=value, version=native)


class TestRecords:
    NUMBERING = Numbering(offset=100)

    def test_native_moved_and_wrapped_records(self) -> None:
        assert versioned(record(b"v", 3), Numbering()) == Versioned(b"v", 3, 10, 20, False)
        assert versioned(record(b"v", 3), self.NUMBERING) == Versioned(b"v", 103, 10, 20, False)
        moved = record(wrap_moved(b"v", 7, 1, 2), 3)
        assert versioned(moved, self.NUMBERING) == Versioned(b"v", 7, 1, 2, False)
        later = record(wrap_timed(b"w", 1, 0), 4)
        assert versioned(later, self.NUMBERING) == Versioned(b"w", 104, 1, 20, False)

    @pytest.mark.parametrize("value", [b"", b"v", b"\0PM1", b"\0PM1" + b"x" * 40])
    def test_any_value_comes_back(self, value: bytes) -> None:
        assert versioned(record(wrap(value, 0), 1), Numbering()).value == value
        assert versioned(record(wrap(value, 5), 1), Numbering()) == Versioned(value, 1, 5, 20, False)

    @pytest.mark.parametrize(
        ("expected", "offset", "plan"),
        [
            (ABSENT, 0, Plan(-1)),
            (ABSENT, 100, Plan(-1)),
            (ANY, 0, Plan(None)),
            (ANY, 100, None),
            (7, 0, Plan(7)),
            (0, 0, Plan(0)),
            (-1, 0, None),
            (107, 100, None),
        ],
    )
    def test_plans_without_reading_the_record(self, expected: Expected, offset: int, plan: Plan | None) -> None:
        assert plan_blind(expected, Numbering(offset)) == plan

    def test_writes_over_records_that_were_moved_in(self) -> None:
        moved = record(wrap_moved(b"v", 7, 1, 2), 3)
        assert plan_over("/a", 7, moved, self.NUMBERING) == Plan(3, 1)
        assert plan_over("/a", ANY, moved, self.NUMBERING) == Plan(3, 1, may_repeat=True)
        assert plan_over("/a", ANY, record(b"v", 3), self.NUMBERING) == Plan(None)
        assert plan_over("/a", ANY, None, self.NUMBERING) == Plan(None)
        for invented in (3, 103, -1, 99):
            with pytest.raises(VersionMismatch):
                plan_over("/a", invented, moved, self.NUMBERING)
        with pytest.raises(VersionMismatch):
            plan_over("/a", 7, None, self.NUMBERING)


class TestAddress:
    @pytest.mark.parametrize(
        ("rest", "address"),
        [
            ("//h:1", Address(("h:1",), "default", "")),
            ("//h", Address(("h:6648",), "default", "")),
            ("//[::1]/ns", Address(("[::1]:6648",), "ns", "")),
            ("//h:1/", Address(("h:1",), "default", "")),
            ("//h:1,[::1]:2/ns", Address(("h:1", "[::1]:2"), "ns", "")),
            ("//h:1/ns/a/b/", Address(("h:1",), "ns", "/a/b")),
        ],
    )
    def test_urls(self, rest: str, address: Address) -> None:
        assert Address.parse(rest) == address

    @pytest.mark.parametrize("rest", ["", "h:1", "//", "//h:", "//h:x/ns", "//h:1,/ns", "//h:70000", "///ns"])
    def test_invalid_urls_are_refused(self, rest: str) -> None:
        with pytest.raises(UnknownStore):
            open_store(f"oxia:{rest}", SystemClock())

    def test_prefixes_are_keys(self) -> None:
        with pytest.raises(BadKey):
            Address.parse("//h:1/ns/a//b")


class TestRefusals:
    def test_server_refusals_are_recognised(self) -> None:
        failed = CallFailed(grpc.StatusCode.UNKNOWN, "oxia: session not found")
        assert refusal(failed) is Refusal.SESSION_UNKNOWN
        assert not is_retryable(failed)
        assert refusal(CallFailed(grpc.StatusCode.UNAVAILABLE, "Socket closed")) is None

    @pytest.mark.parametrize(
        ("code", "details", "undone"),
        [
            (grpc.StatusCode.UNKNOWN, "node is not leader for shard 3", True),
            (grpc.StatusCode.UNIMPLEMENTED, "unknown service", True),
            (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: x", True),
            (grpc.StatusCode.UNAVAILABLE, "Socket closed", False),
            (grpc.StatusCode.UNKNOWN, "oxia: failed to append to wal", False),
            (grpc.StatusCode.CANCELLED, "", False),
        ],
    )
    def test_which_failed_writes_were_not_executed(self, code: grpc.StatusCode, details: str, undone: bool) -> None:
        assert was_not_executed(CallFailed(code, details)) is undone


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_grpc_is_imported_only_for_stores_that_need_it() -> None:
    code = "import sys, anabranch.metadata.open, anabranch.metadata.memory.store; print('grpc' in sys.modules)"
    assert python(code).strip() == "False"


@pytest.mark.parametrize("missing", ["grpc", "xxhash"])
def test_without_the_extra_the_error_names_it(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from anabranch.metadata.open import open_store
from anabranch.metadata.interface import ExtraMissing
from anabranch.runtime.clock import SystemClock
try:
    open_store("oxia://localhost:1/default", SystemClock())
except ExtraMissing as error:
    print(error)
"""
    assert "pip install 'anabranch[oxia]'" in python(code)
