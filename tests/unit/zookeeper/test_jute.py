"""ZooKeeper's wire format: known bytes, round trips, and typed errors for any other bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.zookeeper import jute
from anabranch.zookeeper.errors import Code, MalformedAnswer, RequestTooLarge
from anabranch.zookeeper.jute import Event, MultiResult, Node, Op, Stat

STAT = Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
RAW_STAT = struct.pack(">qqqqiiiqiiq", *STAT)
PART = struct.Struct(">i?i")
END = PART.pack(-1, True, -1)
DECODERS: list[Callable[[bytes], object]] = [
    jute.connect_answer,
    jute.stat_of,
    jute.created_of,
    jute.node_of,
    jute.children_of,
    jute.multi_of,
    jute.nodes_of,
    jute.many_children_of,
    jute.header_of,
    lambda raw: jute.event_of(raw, 1),
    lambda raw: jute.frame_size(raw, 0),
]

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
stats = st.builds(Stat, int64, int64, int64, int64, int32, int32, int32, int64, int32, int32, int64)
nodes = st.builds(Node, st.none() | st.binary(max_size=200), stats)


def raw_stat(stat: Stat) -> bytes:
    return struct.pack(">qqqqiiiqiiq", *stat)


def test_known_requests() -> None:
    assert jute.get_data("/a") == (4, b"\0\0\0\2/a\0", True)
    assert jute.set_data("/a", b"x", 3) == (5, b"\0\0\0\2/a\0\0\0\1x\0\0\0\3", False)
    assert jute.set_data("/a", None, -1).body == b"\0\0\0\2/a" + b"\xff" * 8
    assert jute.delete("/a", 7) == (2, b"\0\0\0\2/a\0\0\0\7", False)
    acl = b"\0\0\0\1\0\0\0\x1f\0\0\0\5world\0\0\0\6anyone"
    assert jute.create("/a", b"", ephemeral=True) == (15, b"\0\0\0\2/a\0\0\0\0" + acl + b"\0\0\0\1", False)
    assert jute.create_intermediate("/a") == (1, b"\0\0\0\2/a\xff\xff\xff\xff" + acl + b"\0\0\0\0", True)
    assert jute.watch_tree("/") == (106, b"\0\0\0\1/\0\0\0\1", True)
    assert jute.frame(5, Op.PING, b"") == b"\0\0\0\x08\0\0\0\5\0\0\0\x0b"
    assert jute.connect(1, 2, 3, b"pw") == b"\0\0\0\x1f" + struct.pack(">iqiq", 0, 1, 2, 3) + b"\0\0\0\2pw\0"


def test_multi_reads_and_writes_have_an_end() -> None:
    assert jute.read_many(Op.GET_DATA, ["/a", "/b"]).body == (
        PART.pack(4, False, -1) + b"\0\0\0\2/a\0" + PART.pack(4, False, -1) + b"\0\0\0\2/b\0" + END
    )
    assert jute.multi([jute.part(Op.DELETE, jute.version_body("/a", 1))]).body == (
        PART.pack(2, False, -1) + b"\0\0\0\2/a\0\0\0\1" + END
    )


def test_too_large_requests_are_refused_before_they_are_sent() -> None:
    fits = jute.REQUEST_BYTES_MAX - 8
    assert len(jute.frame(1, 5, bytes(fits))) == fits + 12
    with pytest.raises(RequestTooLarge):
        jute.frame(1, 5, bytes(fits + 1))


@given(st.lists(nodes | int32, max_size=6))
def test_multi_read_round_trip(found: list[Node | int]) -> None:
    raw = b""
    for one in found:
        if isinstance(one, int):
            raw += PART.pack(-1, False, one) + struct.pack(">i", one)
        else:
            raw += PART.pack(4, False, 0) + jute.blob(one.data) + raw_stat(one.stat)
    assert jute.nodes_of(raw + END) == found


@given(nodes)
def test_node_round_trip(node: Node) -> None:
    assert jute.node_of(jute.blob(node.data) + raw_stat(node.stat)) == node


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8"))) | int32, max_size=5))
def test_children_round_trip(found: list[list[str] | int]) -> None:
    raw = b""
    for one in found:
        if isinstance(one, int):
            raw += PART.pack(-1, False, one) + struct.pack(">i", one)
        else:
            raw += PART.pack(8, False, 0) + struct.pack(">i", len(one)) + b"".join(map(jute.text, one))
            assert jute.children_of(struct.pack(">i", len(one)) + b"".join(map(jute.text, one))) == one
    assert jute.many_children_of(raw + END) == found


def test_multi_answers() -> None:
    good = (
        PART.pack(2, False, 0)
        + PART.pack(1, False, 0)
        + jute.text("/a")
        + PART.pack(5, False, 0)
        + RAW_STAT
        + PART.pack(15, False, 0)
        + jute.text("/b")
        + RAW_STAT
        + PART.pack(13, False, 0)
        + END
    )
    assert jute.multi_of(good) == [
        MultiResult(0, None),
        MultiResult(0, None),
        MultiResult(0, STAT),
        MultiResult(0, STAT),
        MultiResult(0, None),
    ]
    assert jute.failed_part(jute.multi_of(good)) is None
    bad = b"".join(PART.pack(-1, False, code) + struct.pack(">i", code) for code in (0, -103, -2)) + END
    assert jute.failed_part(jute.multi_of(bad)) == (1, Code.BAD_VERSION)


def test_events_and_handshake() -> None:
    event = struct.pack(">iqi", -1, -1, 0) + struct.pack(">ii", 3, 3) + jute.text("/ü")
    assert jute.event_of(event, 9) == Event(3, "/ü", 9)
    assert jute.connect_answer(struct.pack(">iiq", 0, 4000, 77) + jute.blob(b"p" * 16) + b"\0") == (4000, 77, b"p" * 16)


@pytest.mark.parametrize("decode", DECODERS)
@given(raw=st.binary(max_size=300))
def test_any_bytes_are_a_value_or_a_typed_error(decode: Callable[[bytes], object], raw: bytes) -> None:
    try:
        decode(raw)
    except MalformedAnswer:
        pass


@given(st.lists(nodes, min_size=1, max_size=3), st.data())
def test_truncated_or_changed_answer_decodes_or_raises_typed_error(found: list[Node], data: st.DataObject) -> None:
    raw = b"".join(PART.pack(4, False, 0) + jute.blob(one.data) + raw_stat(one.stat) for one in found) + END
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(MalformedAnswer):
        jute.nodes_of(raw[:cut])
    changed = bytearray(raw)
    changed[cut] ^= data.draw(st.integers(1, 255))
    try:
        jute.nodes_of(bytes(changed))
    except MalformedAnswer:
        pass


def test_http_is_not_zookeeper() -> None:
    with pytest.raises(MalformedAnswer):
        jute.frame_size(b"HTTP/1.1 400 Bad Request\r\n", 0)
