"""Bytes of one stored entry, of group heads and of file heads. Pure functions.

A record has the same bytes in the commit log and in its ledger file:

    crc32c u32 | length u32 | ledger u64 | entry u64 | offset u64 | messages u32 | stamp u32 | payload   (little endian)

The checksum covers everything after it. `offset` is the record's own offset in the ledger file: replay is a plain write
at that offset, and a reader that has lost its place can recognise the next record with certainty. `stamp` names the
commit log file that was current when the entry was appended. It distinguishes a record from the remains of a recycled
file.

In the log each group starts with a head of the same layout: ledger = GROUP_LEDGER, entry = number of the group in this
file, offset = offset in the log, length = bytes of its records, messages = number of records. The checksum covers the
head only. A record with ledger = TOMBSTONE_LEDGER says that ledger `entry` was deleted; it is read, but no longer
written (see `log/released_ledgers`).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from anabranch.storage.interface import Payload, StorageError

HEADER = Struct("<IIQQQII")
REST = Struct("<IQQQII")
CRC = Struct("<I")
HEADER_BYTES = HEADER.size
PAYLOAD_BYTES_MAX = 1 << 28
GROUP_LEDGER = (1 << 64) - 1
TOMBSTONE_LEDGER = (1 << 64) - 2

FORMAT = 1
FILE_HEAD = Struct("<8sIIQQ")  # magic, format, crc of the rest, number, reserved
FILE_HEAD_BYTES = FILE_HEAD.size
LEDGER_MAGIC, INDEX_MAGIC, LOG_MAGIC = b"ABledger", b"ABindex\0", b"ABlog\0\0\0"


class Header(NamedTuple):
    crc: int
    length: int
    ledger: int
    entry: int
    offset: int
    messages: int
    stamp: int


class NewerFormat(StorageError):
    """The file was written by a newer version of this software."""

    code = "newer-format"

    def __init__(self, path: str, found: int) -> None:
        super().__init__(f"{path} has format {found}; this version reads up to {FORMAT}")
        self.path, self.found = path, found


class BadFileHead(StorageError):
    code = "bad-file-head"


def log_stamp(number: int) -> int:
    """Four bytes for the number of a log file; they are rare elsewhere, so that recovery can search for them."""
    return (number * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFF_FFFF


def encode_header(ledger: int, entry: int, offset: int, messages: int, stamp: int, payload: Payload) -> bytes:
    rest = REST.pack(len(payload), ledger, entry, offset, messages, stamp)
    return CRC.pack(crc32c(payload, crc32c(rest))) + rest


def decode_header(data: Payload, at: int = 0) -> Header:
    return Header._make(HEADER.unpack_from(data, at))


def is_sound(data: memoryview, at: int, length: int) -> bool:
    """Whether the checksum of the record at `at` holds; the record must be fully inside `data`."""
    crc: int = crc32c(data[at + 4 : at + HEADER_BYTES + length])
    expected: int = CRC.unpack_from(data, at)[0]
    return crc == expected


def encode_group_head(number: int, place: int, records: int, length: int, log: int) -> bytes:
    rest = REST.pack(length, GROUP_LEDGER, number, place, records, log_stamp(log))
    return CRC.pack(crc32c(rest)) + rest


def decode_group_head(data: Payload, at: int, place: int, log: int) -> Header | None:
    """The group head at `at`, or None unless it is sound, of this log file, and at this offset."""
    if len(data) - at < HEADER_BYTES:
        return None
    head = decode_header(data, at)
    if head.ledger != GROUP_LEDGER or head.offset != place or head.stamp != log_stamp(log):
        return None
    return head if head.crc == crc32c(data[at + 4 : at + HEADER_BYTES]) else None


def encode_file_head(magic: bytes, number: int, format_: int = FORMAT) -> bytes:
    crc = crc32c(FILE_HEAD.pack(magic, format_, 0, number, 0))
    return FILE_HEAD.pack(magic, format_, crc, number, 0)


def decode_file_head(data: bytes, magic: bytes, path: str) -> int:
    """The number in a file head. All formats share one head layout, so a newer format is not taken for damage."""
    if len(data) < FILE_HEAD_BYTES:
        raise BadFileHead(f"{path} is too short to have a head")
    found, format_, crc, number, reserved = FILE_HEAD.unpack_from(data)
    if found != magic:
        raise BadFileHead(f"{path} is not a {magic.rstrip(bytes(1)).decode()} file")
    if crc != crc32c(FILE_HEAD.pack(found, format_, 0, number, reserved)):
        raise BadFileHead(f"checksum mismatch in the head of {path}")
    if format_ > FORMAT:
        raise NewerFormat(path, format_)
    return int(number)
