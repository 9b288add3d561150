"""The parts of the etcd store that decide without a server."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import grpc
import pytest

from anabranch.metadata.envelope import Numbering, wrap_moved, wrap_timed
from anabranch.metadata.etcd import bulk, requests
from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd.channel import AnswerTooLarge, Compacted, fate_of, port_error
from anabranch.metadata.etcd.keys import Keyspace, after
from anabranch.metadata.etcd.lease import LeaseClock
from anabranch.metadata.etcd.records import RecentRecord, RecentRecords, numbering_of, versioned
from anabranch.metadata.etcd.scan import PAGE_BYTES, PAGE_KEYS_MAX, next_limit
from anabranch.metadata.etcd.store import parse_url
from anabranch.metadata.grpc_calls import CallFailed, Fate
from anabranch.metadata.interface import (
    RequestTooLarge,
    SessionEvent,
    SessionLost,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
    UnknownStore,
    Versioned,
)
from anabranch.model.errors import Error, NotAllowed

Code = grpc.StatusCode
DISCONNECTED, RECONNECTED, LOST = SessionEvent.DISCONNECTED, SessionEvent.RECONNECTED, SessionEvent.LOST


class TestKeys:
    def test_ranges_hold_what_is_below_and_nothing_beside(self) -> None:
        space = Keyspace("/pre")
        begin, end = space.below("/t")
        for inside in ("/t/a", "/t/a/b", "/t/\U0010ffff", "/t/\x01"):
            assert begin <= space.key(inside) < end
        for outside in ("/t", "/t-x", "/t0", "/t.", "/s/a", "/u"):
            assert not begin <= space.key(outside) < end
        assert space.path(space.key("/t/日本")) == "/t/日本"
        assert space.path(b"/pre/\xff") is None

    def test_prefixes_that_begin_alike_are_apart(self) -> None:
        begin, end = Keyspace("/a").below("")
        assert not begin <= Keyspace("/ab").key("/x") < end
        assert begin <= Keyspace("/a").key("/x") < end

    def test_unreserved_is_all_but_the_reserved(self) -> None:
        space = Keyspace("")

        def is_free(path: str) -> bool:
            return any(begin <= space.key(path) < end for begin, end in space.unreserved())

        assert [is_free(path) for path in ("/.meta", "/.meta/a", "/.meta/a/b")] == [False] * 3
        assert all(
            is_free(path) for path in ("/.metal", "/.meta-x", "/.meta.", "/.met", "/a", "/\U0010ffff", "/.meta0")
        )

    def test_nothing_is_between_a_key_and_the_one_after(self) -> None:
        assert b"/a" < after(b"/a") < b"/a\x00\x00" < b"/a\x01"


class TestUrls:
    @pytest.mark.parametrize(
        ("rest", "found"),
        [
            ("//h:1", (["h:1"], "")),
            ("//h", (["h:2379"], "")),
            ("//h:1,i:2/", (["h:1", "i:2"], "")),
            ("//h:1,[::1],[::1]:7/a/b/", (["h:1", "[::1]:2379", "[::1]:7"], "/a/b")),
        ],
    )
    def test_parsed(self, rest: str, found: tuple[list[str], str]) -> None:
        assert parse_url(rest) == found

    @pytest.mark.parametrize("rest", ["", "h:1", "//", "///a", "//h:1,,i:2", "//h:1,"])
    def test_refused(self, rest: str) -> None:
        with pytest.raises(UnknownStore):
            parse_url(rest)

    def test_bad_prefix_is_refused(self) -> None:
        with pytest.raises(Error):
            parse_url("//h:1/a//b")


class TestEncodingByHand:
    """Is what protobuf would have written."""

    @pytest.mark.parametrize("key_bytes", [1, 100, 127, 128, 8000])
    @pytest.mark.parametrize("value_bytes", [0, 1, 29, 120, 127, 128, 129, 16_383, 16_384, 900_000])
    def test_put_compare_delete(self, key_bytes: int, value_bytes: int) -> None:
        key, value = b"k" * key_bytes, b"v" * value_bytes
        expected = pb.TxnRequest(
            compare=[requests.compare(key, 0), requests.compare(b"e", 2**40 + 7)],
            success=[requests.put_op(key, value), requests.delete_op(key)],
        )
        made = bulk.encode_compare(key, 0) + bulk.encode_compare(b"e", 2**40 + 7)
        made += bulk.encode_put(key, value) + bulk.encode_delete(key)
        assert pb.TxnRequest.FromString(made) == expected

    def test_verdict_decodes_the_start_of_the_answer(self) -> None:
        answer = pb.TxnResponse(header=pb.ResponseHeader(revision=7), succeeded=True, responses=[pb.ResponseOp()] * 3)
        verdict = pb.TxnVerdict.FromString(answer.SerializeToString())
        assert (verdict.succeeded, verdict.header.revision) == (True, 7)

    def test_batches_are_cut_by_count_and_by_bytes(self) -> None:
        small = [(f"/{i}", Versioned(b"", 0, 0, 0, False)) for i in range(300)]
        assert [len(batch) for batch in bulk.batches(small)] == [127, 127, 46]
        large = [(f"/{i}", Versioned(bytes(400_000), 0, 0, 0, False)) for i in range(5)]
        assert [len(batch) for batch in bulk.batches(large)] == [2, 2, 1]
        assert [item for batch in bulk.batches(small + large) for item in batch] == small + large
        assert list(bulk.batches([])) == []


class TestInFlight:
    async def test_does_all_and_raises_the_first_failure(self) -> None:
        done: list[int] = []

        async def piece(number: int) -> None:
            if number == 7:
                raise StoreFull("no room")
            done.append(number)

        await bulk.in_flight((partial(piece, n) for n in range(7)), 3)
        assert sorted(done) == list(range(7))
        with pytest.raises(StoreFull):
            await bulk.in_flight((partial(piece, n) for n in range(7, 9)), 3)


class TestRecords:
    def test_ordinary_moved_and_foreign_values(self) -> None:
        numbering = Numbering(1000, 2**62)
        kv = pb.KeyValue(mod_revision=5, value=wrap_timed(b"v", 1, 2), lease=9)
        assert versioned(kv, numbering) == Versioned(b"v", 1005, 1, 2, True)
        kv = pb.KeyValue(mod_revision=5, value=wrap_moved(b"v", 17, 1, 2))
        assert versioned(kv, numbering) == Versioned(b"v", 17, 1, 2, False)
        assert versioned(pb.KeyValue(mod_revision=5, value=b"raw"), Numbering()) == Versioned(b"raw", 5, 0, 0, False)

    def test_epoch_record(self) -> None:
        stored = Numbering(77, 2**62).to_bytes()
        assert numbering_of(pb.KeyValue(value=wrap_timed(stored, 1, 1))) == Numbering(77, 2**62)
        assert numbering_of(pb.KeyValue(value=wrap_timed(b"", 1, 1))) == Numbering()
        with pytest.raises(StoreIncompatible):
            numbering_of(pb.KeyValue(value=wrap_timed(b"from the future", 1, 1)))

    def test_recent_forgets_the_oldest(self) -> None:
        recent = RecentRecords(2)
        for number, key in enumerate("abc"):
            recent.put(key, RecentRecord(number, number, 0))
            recent.get("a")
        assert (recent.get("a"), recent.get("b"), recent.get("c")) == (
            RecentRecord(0, 0, 0),
            None,
            RecentRecord(2, 2, 0),
        )
        recent.put("c", None)
        assert recent.get("c") is None and len(recent) == 1


class TestLeaseClock:
    def test_validity_counts_from_the_sending(self) -> None:
        lease = LeaseClock(ttl_s=3, valid_until=13)
        assert lease.on_answer(sent_at=12, ttl_s=3) == []
        assert lease.valid_until == 15
        assert lease.on_answer(sent_at=11, ttl_s=3) == []  # a late answer takes nothing back
        assert lease.valid_until == 15

    def test_silence_then_an_answer_reconnects(self) -> None:
        lease = LeaseClock(ttl_s=3, valid_until=13)
        assert lease.on_silence(11) == [DISCONNECTED]
        assert lease.on_silence(15.9) == []
        assert lease.on_answer(15.9, 3) == [RECONNECTED]
        assert (lease.valid_until, lease.is_lost) == (18.9, False)

    def test_session_is_lost_one_ttl_after_its_validity(self) -> None:
        lease = LeaseClock(ttl_s=3, valid_until=13)
        assert lease.on_silence(16) == [DISCONNECTED, LOST]
        assert lease.on_silence(17) == []
        assert lease.valid_until == 13

    def test_server_reports_an_ended_lease(self) -> None:
        lease = LeaseClock(ttl_s=3, valid_until=13)
        assert lease.on_answer(sent_at=11, ttl_s=0) == [LOST]
        assert (lease.valid_until, lease.on_end(12)) == (11, [])


def test_page_limits_follow_the_size_of_records() -> None:
    assert next_limit(2000, 2000, 200_000) == PAGE_KEYS_MAX
    assert next_limit(500, 500, 50_000) == 5000  # growing by steps: the first ones may be small by chance
    assert next_limit(2000, 20, 20 * 1_000_000) == PAGE_BYTES // 1_000_000
    assert next_limit(20, 1, 10 * PAGE_BYTES) == 1
    assert next_limit(2000, 0, 0) == PAGE_KEYS_MAX


class TestFailures:
    @pytest.mark.parametrize(
        ("code", "details", "expected"),
        [
            (Code.NOT_FOUND, "etcdserver: requested lease not found", SessionLost),
            (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
            (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", StoreFull),
            (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", StoreUnavailable),
            (Code.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (5 vs. 4)", AnswerTooLarge),
            (Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5 vs. 4)", RequestTooLarge),
            (Code.INVALID_ARGUMENT, "etcdserver: request is too large", RequestTooLarge),
            (Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", RequestTooLarge),
            (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", NotAllowed),
            (Code.UNIMPLEMENTED, "unknown service", StoreIncompatible),
            (Code.FAILED_PRECONDITION, "etcdserver: something new", StoreUnavailable),
        ],
    )
    def test_refusals_are_typed(self, code: grpc.StatusCode, details: str, expected: type[Error]) -> None:
        failure = CallFailed(code, details)
        assert fate_of(failure) is Fate.ANSWERED
        assert type(port_error(failure)) is expected

    @pytest.mark.parametrize(
        ("code", "details", "expected"),
        [
            (Code.UNAVAILABLE, "failed to connect to all addresses; last error: …", Fate.NOT_SENT),
            (Code.UNAVAILABLE, "errors resolving h:1: […]", Fate.NOT_SENT),
            (Code.UNAVAILABLE, "etcdserver: no leader", Fate.NOT_SENT),
            (Code.UNAVAILABLE, "Socket closed", Fate.UNKNOWN),
            (Code.UNAVAILABLE, "etcdserver: request timed out", Fate.UNKNOWN),
            (Code.UNAVAILABLE, "etcdserver: leader changed", Fate.UNKNOWN),
            (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Fate.UNKNOWN),
            (Code.CANCELLED, "the channel was closed", Fate.UNKNOWN),
            (Code.INTERNAL, "RST_STREAM", Fate.UNKNOWN),
        ],
    )
    def test_which_failures_are_retryable(self, code: grpc.StatusCode, details: str, expected: Fate) -> None:
        assert fate_of(CallFailed(code, details)) is expected


def run_python(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_without_grpc_the_error_names_the_extra() -> None:
    shown = run_python(
        "import sys; sys.modules['grpc'] = None\n"
        "from anabranch.metadata.open import open_store\n"
        "from anabranch.metadata.interface import ExtraMissing\n"
        "from anabranch.runtime.clock import SystemClock\n"
        "try: open_store('etcd://h:1', SystemClock())\n"
        "except ExtraMissing as error: print(error.code, error)\n"
    )
    assert "pip install 'anabranch[etcd]'" in shown


def test_grpc_is_loaded_only_by_stores_that_need_it() -> None:
    code = (
        "import sys, anabranch.metadata.open as o, anabranch.node.standalone\n"
        "from anabranch.runtime.clock import SystemClock\n"
        "o.open_store('memory:', SystemClock())\n"
        "print('grpc' in sys.modules)\n"
        "o.open_store('etcd://h:1', SystemClock())\n"
        "print('grpc' in sys.modules)\n"
    )
    assert run_python(code).split() == ["False", "True"]
