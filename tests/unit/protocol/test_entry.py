"""Inside an entry: checksum, metadata, sticky key, batches."""

from __future__ import annotations

import base64
import tracemalloc
import zlib

import crc32c
import pytest

from anabranch.protocol import entry
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.errors import BadEntry, OpaqueEntry


def test_the_checksum_is_castagnoli() -> None:
    assert crc32c.crc32c(b"123456789") == 0xE3069283


def test_checksum_covers_metadata_size_metadata_and_payload() -> None:
    sealed = entry.build_entry(b"data", sequence_id=1)
    assert sealed[:2] == b"\x0e\x01"
    assert int.from_bytes(sealed[2:6], "big") == crc32c.crc32c(sealed[6:])
    assert entry.checksum_ok(sealed)
    for at in range(2, len(sealed)):
        broken = bytearray(sealed)
        broken[at] ^= 0x10
        assert not entry.checksum_ok(broken), at


def test_no_checksum_is_fine() -> None:
    assert entry.checksum_ok(entry.build_entry(b"data", checksum=False))


def test_broker_metadata_is_skipped() -> None:
    sealed = entry.add_broker_metadata(
        entry.build_entry(b"data", publish_time=77, key="k"), broker_timestamp=1, index=2
    )
    assert sealed[:2] == b"\x0e\x02"
    assert entry.checksum_ok(sealed)
    assert entry.metadata(sealed).partition_key == "k"
    assert entry.publish_time_of(sealed) == 77
    assert entry.split_batch(sealed)[0].data == b"data"
    broken = bytearray(sealed)
    broken[-1] ^= 1
    assert not entry.checksum_ok(broken)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x0e", b"\x0e\x01", b"\x0e\x01\x00\x00\x00", b"\x0e\x02\x00\x00\x00\x09", b"\x0e\x02\xff\xff\xff\xff"],
)
def test_too_short_for_a_checksum(payload: bytes) -> None:
    with pytest.raises(BadEntry):
        entry.checksum_ok(payload)
    with pytest.raises(BadEntry):
        entry.metadata(payload)
    assert entry.publish_time_of(payload) == 0
    assert entry.sticky_key(payload) == entry.NONE_KEY


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00\x00\x00\x05abcd",  # metadata longer than the entry
        b"\x00\x00\x00\x08\x0a\x01p\x10\x01\x18\x01",  # the same, though all fields are there
        b"\x00\x00\x00\x02\xff\xff",  # does not parse
        b"\x00\x00\x00\x00",  # required fields missing
        b"\x00\x00\x00\x07\x0a\x01\xff\x10\x01\x18\x01",  # producer name is not UTF-8
    ],
)
def test_bad_metadata(payload: bytes) -> None:
    with pytest.raises(BadEntry):
        entry.metadata(payload)
    with pytest.raises(BadEntry):
        entry.split_batch(payload)
    assert entry.sticky_key(payload) == entry.NONE_KEY


def test_metadata_and_publish_time_from_any_bytes_like() -> None:
    sealed = entry.build_entry(b"data", producer_name="p", sequence_id=2**40, publish_time=1_763_000_000_000)
    for payload in (sealed, bytearray(sealed), memoryview(sealed)):
        assert entry.metadata(payload).sequence_id == 2**40
        assert entry.publish_time_of(payload) == 1_763_000_000_000


def test_sticky_key_order() -> None:
    assert entry.sticky_key(entry.build_entry(b"", key="k", ordering_key=b"o")) == b"o"
    assert entry.sticky_key(entry.build_entry(b"", key="kä")) == "kä".encode()
    assert entry.sticky_key(entry.build_entry(b"", key="")) == b""
    assert entry.sticky_key(entry.build_entry(b"", producer_name="p", sequence_id=12)) == b"p-12"


def test_sticky_key_of_key_bytes() -> None:
    of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, partition_key_b64_encoded=True)
    of.partition_key = base64.b64encode(b"\xff\x00raw").decode()
    assert entry.sticky_key_of(of) == b"\xff\x00raw"
    of.partition_key = "a"  # no base64: one letter too few
    assert entry.sticky_key_of(of) == b"a"
    of.partition_key = "ä"
    assert entry.sticky_key_of(of) == "ä".encode()


def test_batches() -> None:
    for compress in (False, True):
        sealed = entry.build_batch([b"a", b"", b"ccc"], keys=["k", None, "l"], sequence_id=5, compress=compress)
        messages = entry.split_batch(sealed)
        assert [m.data for m in messages] == [b"a", b"", b"ccc"]
        assert [m.metadata.sequence_id for m in messages] == [5, 6, 7]
        assert [m.metadata.partition_key for m in messages] == ["k", "", "l"]
        assert entry.metadata(sealed).num_messages_in_batch == 3
        assert entry.sticky_key(sealed) == b"k"


def test_a_batch_of_one_and_a_plain_entry() -> None:
    (one,) = entry.split_batch(entry.build_batch([b"x"]))
    (plain,) = entry.split_batch(entry.build_entry(b"x", key="k", ordering_key=b"o", properties={"a": "b"}))
    assert one.data == plain.data == b"x"
    assert (plain.metadata.partition_key, plain.metadata.ordering_key) == ("k", b"o")
    assert [(p.key, p.value) for p in plain.metadata.properties] == [("a", "b")]


def of_batch(**fields: int) -> pb.MessageMetadata:
    of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    for name, value in fields.items():
        setattr(of, name, value)
    return of


def test_damaged_batches() -> None:
    record = b"\x00\x00\x00\x02\x18\x03abc"
    assert [m.data for m in entry.split_batch(entry.seal_entry(of_batch(num_messages_in_batch=1), record))] == [b"abc"]
    for count, payload in [
        (2, record),  # fewer than announced
        (2**31 - 1, record),
        (1, record + b"x"),  # more than announced
        (0, record),
        (-1, record),
        (1, record[:-1]),
        (1, record[:3]),
        (1, b"\x00\x00\x00\x00"),  # no payload size
        (1, b"\x00\x00\x00\x02\xff\xff"),
        (1, b"\xff\xff\xff\xff\x18\x03abc"),
        (1, b"\x00\x00\x00\x0b\x18" + b"\xff" * 9 + b"\x01"),  # payload size -1
    ]:
        with pytest.raises(BadEntry):
            entry.split_batch(entry.seal_entry(of_batch(num_messages_in_batch=count), payload))


def test_opaque_entries_are_refused() -> None:
    for codec in (pb.LZ4, pb.ZSTD, pb.SNAPPY):
        with pytest.raises(OpaqueEntry):
            entry.split_batch(entry.seal_entry(of_batch(compression=codec, uncompressed_size=3), b"abc"))
    encrypted = of_batch()
    encrypted.encryption_keys.add(key="k", value=b"v")
    with pytest.raises(OpaqueEntry):
        entry.split_batch(entry.seal_entry(encrypted, b"abc"))


def test_zlib_payload_with_a_wrong_size_is_refused() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    for size in (9_999_999, 10_000_001):
        with pytest.raises(BadEntry):
            entry.split_batch(entry.seal_entry(of_batch(compression=pb.ZLIB, uncompressed_size=size), bomb))
    tracemalloc.start()
    try:
        for size in (0, 10):
            with pytest.raises(BadEntry):
                entry.split_batch(entry.seal_entry(of_batch(compression=pb.ZLIB, uncompressed_size=size), bomb))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # ten million bytes were never decompressed
    with pytest.raises(OpaqueEntry):
        entry.split_batch(entry.seal_entry(of_batch(compression=pb.ZLIB, uncompressed_size=2**32 - 1), bomb))
    with pytest.raises(BadEntry):
        entry.split_batch(entry.seal_entry(of_batch(compression=pb.ZLIB, uncompressed_size=3), b"abc"))
