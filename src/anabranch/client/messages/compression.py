"""Compressed bodies: the four codecs of the wire, both ways. Knows bytes and sizes; nothing of batches or connections.

| codec  | form on the wire                             | done by        |
|--------|----------------------------------------------|----------------|
| lz4    | raw block, without a frame                   | cramjam        |
| zlib   | RFC 1950 stream                              | Python's zlib  |
| zstd   | one zstd frame                               | cramjam        |
| snappy | raw block, without framing                   | cramjam        |

A body says how large it is before it is opened, and exactly that much room is given to it: a small entry that would
unpack to gigabytes is refused, not opened. The libraries are loaded when the first body needs them.
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

FLOOR_BYTES = 4 * 1024  # smaller bodies are not worth the work
UNPACKED_BYTES_MAX = 128 * 1024 * 1024  # nothing is opened beyond this


class Compression(StrEnum):
    """How a producer compresses. `NONE` is the default of the SDK; consumers read all of them without being told."""

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
    """The body as it travels, and how it is packed: plain when it is small or would not become smaller."""
    if kind is Compression.NONE or len(body) < floor_bytes:
        return Compression.NONE, body
    made = _compressed(body, kind)
    return (kind, made) if len(made) < len(body) else (Compression.NONE, body)


def compressed(body: bytes | bytearray, kind: Compression) -> bytes:
    """The body in this codec, whether that is smaller or not."""
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
        # One byte more than promised, so that a longer stream is noticed without being unpacked.
        made = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as cause:
        raise BadEntry(f"zlib body is damaged: {cause}") from cause
    return _exactly(size, len(made), made)


def _decompressed(kind: int, data: Bytes, size: int) -> bytes:
    import cramjam

    room = bytearray(size)
    try:
        if kind == pb.LZ4:
            count = cramjam.lz4.decompress_block_into(data, room, output_len=size)
        elif kind == pb.ZSTD:
            count = cramjam.zstd.decompress_into(data, room)
        elif kind == pb.SNAPPY:
            count = cramjam.snappy.decompress_raw_into(data, room)
        else:
            raise OpaqueEntry(f"compression {kind} is not known here")
    except cramjam.DecompressionError as cause:
        raise BadEntry(f"{pb.CompressionType.Name(kind)} body is damaged, or longer than it says: {cause}") from cause
    return _exactly(size, count, room)


def _exactly(size: int, count: int, made: bytes | bytearray) -> bytes:
    if count != size:
        raise BadEntry(f"the body unpacks to another size than the {size} bytes promised")
    return bytes(made)
