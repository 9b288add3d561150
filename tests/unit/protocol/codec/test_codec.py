"""Entries to columns and back: inputs, outputs, refusals. With both implementations, if both are installed."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest

from anabranch.model.keyhash import murmur3_32
from anabranch.model.routing import MOD_N, RANGE_HIGH16, RANGE_LOW16, keyless_position
from anabranch.protocol import codec
from anabranch.protocol import entry as entries
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import core
from anabranch.protocol.errors import BadEntry, OpaqueEntry

FORMS = ["python"] if core.NATIVE is None else ["python", "native"]


@pytest.fixture(autouse=True, params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both implementations pass the same tests."""
    chosen = core.PYTHON if request.param == "python" else core.NATIVE
    assert chosen is not None
    monkeypatch.setattr(core, "loops", chosen)
    monkeypatch.setattr(core, "decode", chosen.decode)
    return str(request.param)


def packed(values: Any, keys: Any = None, **options: Any) -> list[bytes]:
    of = codec.write(values, keys, producer_name="p", publish_time=7, **options)
    return [one.data for segment in of for one in segment]


class TestRoundTrip:
    def test_values_keys_and_properties_round_trip(self) -> None:
        made = packed(
            [b"a", None, b""],
            ["k", b"\xff\0", None],
            event_times=[5, None, 6],
            properties=[{"x": "y", "z": ""}, None, {}],
            first=40,
        )
        found = codec.read(made)
        assert found.values() == [b"a", None, b""]
        assert found.keys() == ["k", b"\xff\0", None]
        assert found.event_times() == [5, 0, 6]
        assert found.properties() == [{"x": "y", "z": ""}, {}, {}]
        assert found.message_sequence_ids() == [40, 41, 42]
        assert found.batch_indexes() == [0, 1, 2]
        assert (found.publish_times, found.producer_names, found.batch_sizes) == ([7], ["p"], [3])

    def test_codec_agrees_with_the_entry_module(self) -> None:
        (made,) = packed([b"one", b"two"], ["k1", "k2"], first=9)
        assert entries.checksum_ok(made)
        assert [one.data for one in entries.split_batch(made)] == [b"one", b"two"]
        of = entries.metadata(made)
        assert (of.partition_key, of.sequence_id, of.highest_sequence_id) == ("k1", 9, 10)

    def test_single_message_has_no_batch_layout(self) -> None:
        (made,) = packed([b"one"], [b"\1"], event_times=[3], properties=[{"a": "b"}])
        assert not entries.is_batch(made)
        found = codec.read([made])
        assert (found.values(), found.keys(), found.properties()) == ([b"one"], [b"\1"], [{"a": "b"}])
        assert found.batch_indexes() == [-1] and found.event_times() == [3]

    def test_arrow_and_lists_give_the_same_bytes(self) -> None:
        values = [b"v%d" % row for row in range(50)]
        keys = [None if row % 5 == 0 else f"key-{row}" for row in range(50)]
        times = [row or None for row in range(50)]
        properties = [[("n", str(row))] for row in range(50)]
        listed = packed(values, keys, event_times=times, properties=properties, messages_max=7)
        padded: dict[str, Any] = {
            "values": pa.array([b"skipped", *values], pa.large_binary())[1:],
            "keys": pa.array(["skipped", *keys])[1:],
            "event_times": pa.array([1, *times], pa.int64())[1:],
            "properties": pa.array([[("a", "b")], *properties], pa.map_(pa.string(), pa.string()))[1:],
        }
        assert packed(padded.pop("values"), padded.pop("keys"), messages_max=7, **padded) == listed
        chunked = pa.chunked_array([pa.array(values[:20]), pa.array(values[20:])])
        assert packed(chunked, pa.array(keys).dictionary_encode(), messages_max=7) == packed(
            values, keys, messages_max=7
        )

    def test_arrow_columns(self) -> None:
        found = codec.read(packed([b"a", None], ["k", None], event_times=[0, 1], properties=[{"x": "y"}, {}]))
        batch = found.to_arrow(["key", "key_bytes", "value", "event_time", "properties", "producer_name", "entry"])
        batch.validate(full=True)
        rows = batch.to_pydict()
        assert rows["key"] == ["k", None] and rows["value"] == [b"a", None]
        assert rows["event_time"][0] is None and rows["event_time"][1].timestamp() == 0.001
        assert rows["properties"] == [[("x", "y")], []] and rows["producer_name"] == ["p", "p"]
        with pytest.raises(KeyError):
            found.arrow("colour")

    def test_binary_keys_are_text_only_if_utf8(self) -> None:
        found = codec.read(packed([b"", b"", b""], ["k", b"text", b"\xff"]))
        assert found.arrow("key").to_pylist() == ["k", "text", None]
        assert found.arrow("key_bytes").to_pylist() == [b"k", b"text", b"\xff"]

    @pytest.mark.parametrize("has_all", [True, False])
    def test_many_rows(self, has_all: bool) -> None:
        """As many rows as are decoded by whole columns, in every form."""
        rows = range(core.VECTOR_ROWS_MIN + 9)
        values = [b"%d" % row * (row % 50) for row in rows]
        keys = [f"ké{row}" if has_all or row % 3 else None for row in rows]
        times = [1_700_000_000_000 + row if has_all or row % 2 else None for row in rows]
        found = codec.read(packed(values, keys, event_times=times, first=100, messages_max=100))
        assert (found.values(), found.keys()) == (values, keys)
        assert found.event_times() == [time or 0 for time in times]
        assert found.message_sequence_ids() == [100 + row for row in rows]
        assert found.batch_indexes() == [row % 100 for row in rows]
        assert found.entries().tolist() == [row // 100 for row in rows]
        batch = found.to_arrow()
        batch.validate(full=True)
        table = batch.to_pydict()
        assert (table["key"], table["value"], table["sequence_id"]) == (keys, values, [100 + row for row in rows])
        assert [time.timestamp() * 1000 if time else None for time in table["event_time"]] == times

    def test_no_rows(self) -> None:
        assert packed([]) == []
        found = codec.read([])
        assert len(found) == 0 and found.values() == [] and found.to_arrow().num_rows == 0


class TestCutting:
    def test_batches_are_limited_by_messages_and_bytes(self) -> None:
        (by_count,) = codec.write([b"x"] * 7, producer_name="p", publish_time=0, messages_max=3)
        assert [list(one.rows) for one in by_count] == [[0, 1, 2], [3, 4, 5], [6]]
        (by_size,) = codec.write([b"x" * 40] * 4, producer_name="p", publish_time=0, bytes_max=100)
        assert [len(one.rows) for one in by_size] == [2, 2]
        assert all(len(one.body) <= 100 for one in by_size)
        (large,) = codec.write([b"x" * 400, b"y"], producer_name="p", publish_time=0, bytes_max=100)
        assert [(one.first, one.highest) for one in large] == [(0, 0), (1, 1)]

    def test_rows_go_to_their_segments_in_order(self) -> None:
        found = codec.write(
            [b"%d" % row for row in range(6)],
            producer_name="p",
            publish_time=0,
            segments=[1, 0, -1, 1, 0, 1],
            segment_count=3,
            first=10,
        )
        assert [[(list(one.rows), one.first, one.highest) for one in segment] for segment in found] == [
            [([1, 4], 11, 14)],
            [([0, 3, 5], 10, 15)],
            [],
        ]
        assert codec.read([found[1][0].data]).message_sequence_ids() == [10, 13, 15]

    def test_sequence_ids_given_by_the_caller(self) -> None:
        (found,) = codec.write([b"a", b"b"], producer_name="p", publish_time=0, sequence_ids=[1 << 40, 1 << 41])
        assert (found[0].first, found[0].highest) == (1 << 40, 1 << 41)

    def test_compression_and_extra_metadata(self) -> None:
        extra = pb.MessageMetadata(schema_version=b"\7").SerializePartialToString()
        made = packed([b"x" * 900] * 5, compressed=lambda body: (int(pb.ZLIB), zlib.compress(body)), extra=extra)
        assert len(made[0]) < 200
        found = codec.read(made)
        assert found.values() == [b"x" * 900] * 5 and found.schema_versions == [b"\7"]
        with pytest.raises(OpaqueEntry):
            codec.read(packed([b"x", b"y"], compressed=lambda body: (int(pb.LZ4), bytes(body))))


class TestRouting:
    def test_range_and_mod_n_routing_agree_with_the_model(self) -> None:
        keys: list[str | bytes | None] = ["a", b"b", None, "customer-17", None]
        hashes = [murmur3_32(key) for key in (b"a", b"b", b"customer-17")]
        assert codec.key_hashes(keys).tolist() == [hashes[0], hashes[1], 0, hashes[2], 0]
        borders = [0, 0x4000, 0x8000, 0xC000]
        low = [at & 0xFFFF for at in hashes]
        wanted = [low[0], low[1], keyless_position(102), low[2], keyless_position(104)]
        assert codec.route(keys, RANGE_LOW16, borders, first=100).tolist() == [at // 0x4000 for at in wanted]
        high = codec.route(keys, RANGE_HIGH16, borders, first=100).tolist()
        assert [high[row] for row in (0, 1, 3)] == [at >> 16 >> 14 for at in hashes]
        mod = codec.route(keys, MOD_N, [0] * 3, sequence_ids=[0, 0, 7, 0, 8]).tolist()
        first, second, third = (murmur3_32(text) & 0x7FFFFFFF for text in (b"a", b64encode(b"b"), b"customer-17"))
        assert mod == [first % 3, second % 3, 1, third % 3, 2], "v4 clients hash keys of bytes as base64 text"

    def test_text_and_binary_form_of_a_key_route_alike(self) -> None:
        assert codec.key_hashes(["é"]).tolist() == codec.key_hashes(["é".encode()]).tolist()
        assert codec.key_hashes(pa.array(["é", None])).tolist() == codec.key_hashes(["é", None]).tolist()


class TestRefusals:
    @pytest.mark.parametrize(
        ("values", "keys"),
        [
            ([1], None),
            (["text"], None),
            ([b""], [1]),
            ([b""], ["\ud800"]),
            ([b"", b""], ["k"]),
            (pa.array([1.5]), None),
        ],
    )
    def test_columns_of_the_wrong_kind(self, values: Any, keys: Any) -> None:
        with pytest.raises(codec.BadColumn):
            packed(values, keys)

    def test_other_columns(self) -> None:
        bad: list[dict[str, Any]] = [
            {"event_times": ["soon"]},
            {"event_times": [1, 2]},
            {"sequence_ids": [1 << 70]},
            {"properties": [{"a": 1}]},
            {"properties": []},
            {"segments": [3]},
            {"segments": [0, 0]},
        ]
        for options in bad:
            with pytest.raises(codec.BadColumn):
                packed([b"x"], **options)
        with pytest.raises(codec.BadColumn):
            codec.route(["k"], RANGE_LOW16, [])

    @pytest.mark.parametrize("cut", [1, 5, 11, 30, 60])
    def test_entries_cut_short(self, cut: int) -> None:
        (made,) = packed([b"one", b"two", b"three"], ["a", "b", "c"])
        with pytest.raises(BadEntry):
            codec.read([made[:-cut]])
        with pytest.raises(BadEntry):
            codec.read([made[:-cut]], verify=False)

    def test_checksum_is_checked_only_with_verify(self) -> None:
        made = bytearray(packed([b"one", b"two"])[0])
        made[-1] ^= 1
        with pytest.raises(BadEntry, match="checksum"):
            codec.read([bytes(made)])
        assert codec.read([bytes(made)], verify=False).values() == [b"one", b"twn"]

    def test_more_messages_than_the_body_can_hold_are_refused(self) -> None:
        of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=2**31 - 1)
        with pytest.raises(BadEntry):
            codec.read([entries.seal_entry(of, b"\0\0\0\2\x18\0")])
        of.num_messages_in_batch = -1
        with pytest.raises(BadEntry):
            codec.read([entries.seal_entry(of, b"\0\0\0\2\x18\0")])

    def test_encrypted_chunked_and_marked(self) -> None:
        of = pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=0)
        of.num_chunks_from_msg = 2
        chunk = entries.seal_entry(of, b"half")
        of.ClearField("num_chunks_from_msg")
        of.marker_type = 1
        marker = entries.seal_entry(of, b"")
        found = codec.read([chunk, marker, *packed([b"x", b"y"])])
        assert found.chunked == [0] and found.entries().tolist() == [2, 2]
        of.ClearField("marker_type")
        of.encryption_keys.add(key="k", value=b"v")
        with pytest.raises(OpaqueEntry):
            codec.read([entries.seal_entry(of, b"?")])

    def test_slots_emptied_by_compaction_keep_their_index(self) -> None:
        (made,) = packed([b"one", b"two", b"three"])
        found = codec.read([entries.without_messages(made, [False, True, True])])
        assert found.values() == [b"two", b"three"] and found.batch_indexes() == [1, 2]
