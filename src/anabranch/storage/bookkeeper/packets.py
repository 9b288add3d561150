"""Protocol version 2 of bookies, without I/O: requests to bytes, bytes to answers.

A frame is `length u32` and a packet of that many bytes. A packet begins with one word: version 2, operation, flags.
Answers carry no request number. An answer belongs to the oldest request of the same operation, ledger and entry; for
batch reads, to the request id. After a timeout the connection must therefore be closed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

from anabranch.storage.bookkeeper.entry_body import BODY_HEAD_BYTES
from anabranch.storage.bookkeeper.errors import EntryTooLarge, MalformedPacket
from anabranch.storage.interface import Payload

VERSION = 2
FRAME_BYTES_MAX = 5 * 1024 * 1024
"""Default of the bookies' `nettyMaxFrameSizeBytes`, length word included."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Answers above this close the connection: no bookie with sensible settings sends them."""

LAST_ENTRY = -1
"""Entry id of a read of the last entry that the bookie has of a ledger."""


class Op(IntEnum):
    ADD = 1
    READ = 2
    BATCH_READ = 7


class Flag(IntFlag):
    NONE = 0
    FENCE = 1  # of reads: later ordinary adds to the ledger are refused
    RECOVERY = 2  # of adds: accepted by a fenced bookie
    HIGH_PRIORITY = 4


class Code(IntEnum):
    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107


class Answer(NamedTuple):
    op: int
    code: int
    ledger: int
    entry: int
    request_id: int  # of batch reads, else 0
    bodies: tuple[memoryview, ...]


_LENGTH = struct.Struct(">I")
_WORD = struct.Struct(">I")
_ADDRESS = struct.Struct(">qq")
_BATCH = struct.Struct(">qqqiq")
_ANSWER = struct.Struct(">Iiqq")
_REQUEST_ID = struct.Struct(">q")
_SIZE = struct.Struct(">i")
KEY_BYTES = 20
PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - _LENGTH.size - _WORD.size - KEY_BYTES - BODY_HEAD_BYTES


def master_key(password: bytes) -> bytes:
    """Bookies remember it from the first add of a ledger. It is no secret: the password stands in the metadata."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def _word(op: Op, flags: int) -> bytes:
    return _WORD.pack(VERSION << 24 | op << 16 | flags)


def add(key: bytes, head: bytes, payload: Payload, flags: Flag = Flag.NONE) -> tuple[bytes, Payload]:
    """The frame in two parts, so that the payload is not copied."""
    size = _WORD.size + len(key) + len(head) + len(payload)
    if size + _LENGTH.size > FRAME_BYTES_MAX:
        raise EntryTooLarge(f"an entry of {len(payload):,} bytes is above the limit of {PAYLOAD_BYTES_MAX:,} bytes")
    return b"".join((_LENGTH.pack(size), _word(Op.ADD, flags), key, head)), payload


def read(ledger: int, entry: int, flags: Flag = Flag.NONE, key: bytes = b"") -> bytes:
    """`key` is sent with FENCE only. A fencing read without it would close the connection."""
    assert bool(key) == bool(flags & Flag.FENCE)
    packet = _word(Op.READ, flags) + _ADDRESS.pack(ledger, entry) + key
    return _LENGTH.pack(len(packet)) + packet


def batch_read(ledger: int, first: int, request_id: int, entries_max: int, bytes_max: int) -> bytes:
    packet = _word(Op.BATCH_READ, 0) + _BATCH.pack(ledger, first, request_id, entries_max, bytes_max)
    return _LENGTH.pack(len(packet)) + packet


class AnswerDecoder:
    """Bytes of one connection to answers, however they are cut."""

    def __init__(self, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._answer_bytes_max = answer_bytes_max

    def feed(self, data: bytes | memoryview) -> Iterator[Answer]:
        self._buffer += data
        if len(self._buffer) < _LENGTH.size or len(self._buffer) < self._first_frame():
            return
        raw, at = bytes(self._buffer), 0
        while len(raw) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(raw, at)
            if not _ANSWER.size <= size <= self._answer_bytes_max:
                raise MalformedPacket(f"a bookie announced an answer of {size:,} bytes")
            end = at + _LENGTH.size + size
            if len(raw) < end:
                break
            yield _answer(memoryview(raw)[at + _LENGTH.size : end])
            at = end
        del self._buffer[:at]

    def _first_frame(self) -> int:
        """Bytes of the first frame, so that the parts of a long answer are not copied again and again."""
        size: int = _LENGTH.unpack_from(self._buffer)[0]
        return 0 if size > self._answer_bytes_max else _LENGTH.size + size


def _answer(packet: memoryview) -> Answer:
    word, code, ledger, entry = _ANSWER.unpack_from(packet)
    version, op = word >> 24, word >> 16 & 0xFF
    if version != VERSION:
        raise MalformedPacket(f"a bookie answered in protocol version {version}, not {VERSION}")
    rest = packet[_ANSWER.size :]
    if op == Op.ADD:
        return Answer(op, code, ledger, entry, 0, ())
    if op == Op.READ:
        return Answer(op, code, ledger, entry, 0, (rest,) if code == Code.OK else ())
    if op != Op.BATCH_READ:
        raise MalformedPacket(f"a bookie answered operation {op}, which was not asked")
    if len(rest) < _REQUEST_ID.size:
        raise MalformedPacket("the answer of a batch read ends before its request id")
    (request_id,) = _REQUEST_ID.unpack_from(rest)
    return Answer(op, code, ledger, entry, request_id, tuple(_bodies(rest[_REQUEST_ID.size :])))


def _bodies(rest: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(rest):
        if len(rest) - at < _SIZE.size:
            raise MalformedPacket("the answer of a batch read ends within a size")
        (size,) = _SIZE.unpack_from(rest, at)
        at += _SIZE.size
        if not 0 <= size <= len(rest) - at:
            raise MalformedPacket(f"an entry of a batch read claims {size:,} bytes, {len(rest) - at:,} are there")
        yield rest[at : at + size]
        at += size
