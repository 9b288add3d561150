"""Compressed bodies: every codec, small, incompressible and damaged bodies, decompression bombs."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

import cramjam
import pytest

from anabranch.client.errors import BadOption
from anabranch.client.messages.compression import FLOOR_BYTES, Compression, packed, unpacked
from anabranch.client.messages.outgoing import EntryFormat, OutgoingMessage
from anabranch.client.producer.open_batch import sealed
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import messages_of, parts
from anabranch.protocol.errors import BadEntry, OpaqueEntry

CODECS = [one for one in Compression if one is not Compression.NONE]
BODY = b"the same again and again; " * 1000


def described(kind: Compression, size: int) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, compression=kind.number, uncompressed_size=size
    )


@pytest.mark.parametrize("kind", CODECS)
def test_compressed_bodies_round_trip(kind: Compression) -> None:
    used, body = packed(BODY, kind)
    assert used is kind
    assert len(body) < len(BODY) / 4
    assert unpacked(described(kind, len(BODY)), memoryview(body)) == BODY


@pytest.mark.parametrize("kind", CODECS)
def test_small_and_random_bodies_are_not_compressed(kind: Compression) -> None:
    small, noise = b"x" * (FLOOR_BYTES - 1), os.urandom(FLOOR_BYTES)
    assert packed(small, kind) == (Compression.NONE, small)
    assert packed(noise, kind) == (Compression.NONE, noise)


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("count", [1, 300])
def test_entries_name_their_codec(kind: Compression, count: int) -> None:
    records = [OutgoingMessage(n, BODY[: 20_000 // count + n], "k") for n in range(count)]
    entry = sealed(records, EntryFormat("p", kind))
    of, data = parts(entry.data)
    assert (of.compression, of.num_messages_in_batch) == (kind.number, count)
    assert len(data) < of.uncompressed_size
    assert [one.data for one in messages_of(of, bytes(unpacked(of, data)))] == [one.value for one in records]


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("body", [b"", b"\xff" * 40, b"\x00\x01\x02", zlib.compress(b"x")[:-3]])
def test_damaged_body_is_a_bad_entry(kind: Compression, body: bytes) -> None:
    with pytest.raises(BadEntry):
        unpacked(described(kind, 5000), body)


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("promised", [len(BODY) - 1, len(BODY) + 1, 10])
def test_body_with_other_size_than_stated_is_a_bad_entry(kind: Compression, promised: int) -> None:
    _, body = packed(BODY, kind)
    with pytest.raises(BadEntry):
        unpacked(described(kind, promised), body)


@pytest.mark.parametrize("kind", CODECS)
def test_decompression_bomb_is_refused(kind: Compression) -> None:
    """Refused with a true and with a false size, because only the stated size is allocated."""
    _, body = packed(bytes(32 << 20), kind)
    with pytest.raises(BadEntry, match="more than the 1000"):
        unpacked(described(kind, 32 << 20), body, bytes_max=1000)
    with pytest.raises(BadEntry):
        unpacked(described(kind, 1000), body)


def test_encrypted_bodies_and_unknown_codecs_are_opaque() -> None:
    of = described(Compression.NONE, 1)
    of.encryption_keys.add(key="k", value=b"v")
    with pytest.raises(OpaqueEntry):
        unpacked(of, b"x")


def test_codec_formats_match_the_protocol() -> None:
    """lz4 and snappy are raw blocks, zlib is RFC 1950, zstd is a frame."""
    assert bytes(cramjam.lz4.decompress_block(packed(BODY, Compression.LZ4)[1], output_len=len(BODY))) == BODY
    assert bytes(cramjam.snappy.decompress_raw(packed(BODY, Compression.SNAPPY)[1])) == BODY
    assert zlib.decompress(packed(BODY, Compression.ZLIB)[1]) == BODY
    assert packed(BODY, Compression.ZSTD)[1].startswith(b"\x28\xb5\x2f\xfd")


def test_codecs_are_found_by_name() -> None:
    assert Compression.named("ZSTD") is Compression.named(Compression.ZSTD) is Compression.ZSTD
    assert Compression.named(None) is Compression.NONE
    for wrong in ("gzip", 7):
        with pytest.raises(BadOption, match="compression is one of"):
            Compression.named(wrong)  # type: ignore[arg-type]  # that is the point


def test_codec_libraries_load_on_first_use() -> None:
    names = ("cramjam", "avro", "fastavro", "pydantic")
    script = f"import sys, anabranch; anabranch.connect; print([one for one in {names} if one in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
