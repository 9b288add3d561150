"""Compression of bodies: the four codecs of the protocol.

| codec  | form on the wire                             | done by        |
|--------|----------------------------------------------|----------------|
| lz4    | raw block, without a frame                   | cramjam        |
| zlib   | RFC 1950 stream                              | Python's zlib  |
| zstd   | one zstd frame                               | cramjam        |
| snappy | raw block, without framing                   | cramjam        |

An entry states the uncompressed size, and exactly that much memory is allocated. A small entry that would decompress to
gigabytes is refused. The libraries are loaded when the first body needs them.
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import TYPE_CHECKING

from anabranch.client.errors import BadOption
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.errors import BadEntry, OpaqueEntry

if TYPE_CHECKING:
    from anabranch.protocol.entry import Bytes

FLOOR_BYTES = 4 * 1024  # smaller bodies are not compressed
UNPACKED_BYTES_MAX = 128 * 1024 * 1024  # larger bodies are not decompressed


class Compression(StrEnum):
    """Compression of a producer. `NONE` is the default; consumers read all codecs without an option."""

    NONE = "none"
    LZ4 = "lz4"
    ZLIB = "zlib"
    ZSTD = "zstd"
    SNAPPY = "snappy"

    @classmethod
    def named(cls, name: str | None) -> Compression:
        """By member, by name in any case, or None for no compression; raises BadOption."""
        try:
            return cls.NONE if name is None else cls(name.lower())
        except (ValueError, AttributeError) as cause:
            names = ", ".join(one.value for one in cls)
            raise BadOption(f"compression is one of {names}, not {name!r}") from cause

    @property
    def number(self) -> pb.CompressionType:
        return _NUMBERS[self]


_NUMBERS = {
    Compression.NONE: pb.NONE,
    Compression.LZ4: pb.LZ4,
    Compression.ZLIB: pb.ZLIB,
    Compression.ZSTD: pb.ZSTD,
    Compression.SNAPPY: pb.SNAPPY,
}


def packed(body: bytes, kind: Compression, floor_bytes: int = FLOOR_BYTES) -> tuple[Compression, bytes]:
    """The body as it is sent, and its codec: uncompressed if it is small or would not become smaller."""
    if kind is Compression.NONE or len(body) < floor_bytes:
        return Compression.NONE, body
    made = _compressed(body, kind)
    return (kind, made) if len(made) < len(body) else (Compression.NONE, body)


def compressed(body: bytes | bytearray, kind: Compression) -> bytes:
    """The body in this codec, even if that is not smaller."""
    return _compressed(bytes(body), kind)


def unpacked(of: pb.MessageMetadata, data: Bytes, bytes_max: int = UNPACKED_BYTES_MAX) -> Bytes:
    """The body that `data` stands for, as the entry's metadata describes it; `data` itself where it is not packed.
    Raises BadEntry or OpaqueEntry."""
    if of.encryption_keys:
        raise OpaqueEntry("the entry is encrypted")
    kind = of.compression
    if kind == pb.NONE:
        return data
    size = of.uncompressed_size
    if size > bytes_max:
        raise BadEntry(f"the body unpacks to {size} bytes, more than the {bytes_max} that are opened")
    if kind == pb.ZLIB:
        return _inflated(data, size)
    return _decompressed(kind, data, size)


def _compressed(body: bytes, kind: Compression) -> bytes:
    if kind is Compression.ZLIB:
        return zlib.compress(body)
    import cramjam

    if kind is Compression.LZ4:
        return bytes(cramjam.lz4.compress_block(body, store_size=False))
    if kind is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(body, level=3))
    return bytes(cramjam.snappy.compress_raw(body))


def _inflated(data: Bytes, size: int) -> bytes:
    try:
        # One byte more than stated, so that a longer stream is detected without decompressing all of it.
        made = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as cause:
        raise BadEntry(f"zlib body is damaged: {cause}") from cause
    return _exactly(size, len(made), made)


def _decompressed(kind: int, data: Bytes, size: int) -> bytes:
    import cramjam

    output = bytearray(size)
    try:
        if kind == pb.LZ4:
            count = cramjam.lz4.decompress_block_into(data, output, output_len=size)
        elif kind == pb.ZSTD:
            count = cramjam.zstd.decompress_into(data, output)
        elif kind == pb.SNAPPY:
            count = cramjam.snappy.decompress_raw_into(data, output)
        else:
            raise OpaqueEntry(f"compression {kind} is not supported")
    except cramjam.DecompressionError as cause:
        raise BadEntry(f"{pb.CompressionType.Name(kind)} body is damaged, or larger than stated: {cause}") from cause
    return _exactly(size, count, output)


def _exactly(size: int, count: int, made: bytes | bytearray) -> bytes:
    if count != size:
        raise BadEntry(f"the body does not decompress to the stated {size} bytes")
    return bytes(made)
