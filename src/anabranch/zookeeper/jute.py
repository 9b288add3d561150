"""ZooKeeper's wire format (jute): requests to bytes, answers to values. Pure.

Decoding any bytes gives a value or raises MalformedAnswer.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import sha1
from typing import NamedTuple

from anabranch.zookeeper.errors import Code, MalformedAnswer, RequestTooLarge

REQUEST_BYTES_MAX = 1_048_575
"""A server with default settings (`jute.maxbuffer`) drops the connection on a larger request."""

ANSWER_BYTES_MAX = 256 * 1024 * 1024

XID_EVENT = -1
XID_PING = -2
XID_AUTH = -4


class Op(IntEnum):
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    PING = 11
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    MULTI_READ = 22
    AUTH = 100
    COUNT_BELOW = 104
    ADD_WATCH = 106
    CLOSE_SESSION = -11


class EventType(IntEnum):
    CREATED = 1
    DELETED = 2
    CHANGED = 3


class Stat(NamedTuple):
    created_zxid: int
    modified_zxid: int
    created_ms: int
    modified_ms: int
    version: int
    children_version: int
    acl_version: int
    owner: int  # session id of an ephemeral node, else 0
    data_length: int
    child_count: int
    children_zxid: int


class Node(NamedTuple):
    """`data` is None for a node without data, which differs from empty data."""

    data: bytes | None
    stat: Stat


class ConnectAnswer(NamedTuple):
    timeout_ms: int  # 0: the session has expired
    session_id: int
    password: bytes


class ReplyHeader(NamedTuple):
    xid: int
    zxid: int
    error: int


class Event(NamedTuple):
    type: int
    path: str
    zxid: int  # of the change (since 3.9), otherwise -1


class MultiResult(NamedTuple):
    """Result of one part of a multi: its error, or the new stat where the operation returns one."""

    error: int
    stat: Stat | None


class Request(NamedTuple):
    """`repeatable`: sending it twice has the same effect, so it is sent again after a lost connection."""

    op: int
    body: bytes
    repeatable: bool


_INT = struct.Struct(">i")
_EPHEMERAL_SEQUENTIAL = 3
_TWO_INTS = struct.Struct(">ii")
_STAT = struct.Struct(">qqqqiiiqiiq")
_HEADER = struct.Struct(">iqi")
_CONNECT = struct.Struct(">iqiq")
_CONNECT_ANSWER = struct.Struct(">iiq")
_PART = struct.Struct(">i?i")  # header of one part of a multi: type, done, error
_FRAME = struct.Struct(">iii")
_NONE = _INT.pack(-1)
_END = _PART.pack(-1, True, -1)
_TRUE, _FALSE = b"\1", b"\0"

HEADER_BYTES = _HEADER.size
STAT_BYTES = _STAT.size


def text(value: str) -> bytes:
    raw = value.encode()
    return _INT.pack(len(raw)) + raw


def blob(value: bytes | None) -> bytes:
    return _NONE if value is None else _INT.pack(len(value)) + value


def _acl(scheme: str, identity: str) -> bytes:
    """A list of one entry with all permissions."""
    return _INT.pack(1) + _INT.pack(31) + text(scheme) + text(identity)


OPEN_ACL = _acl("world", "anyone")


def digest_acl(digest: str) -> bytes:
    """Only the user of `digest` (`user:password`). ZooKeeper keeps a hash of both."""
    hashed = b64encode(sha1(digest.encode(), usedforsecurity=False).digest()).decode()
    return _acl("digest", f"{digest.partition(':')[0]}:{hashed}")


def frame(xid: int, op: int, body: bytes) -> bytes:
    if len(body) + 8 > REQUEST_BYTES_MAX:
        raise RequestTooLarge(f"a request of {len(body) + 8} bytes; ZooKeeper accepts at most {REQUEST_BYTES_MAX}")
    return _FRAME.pack(len(body) + 8, xid, op) + body


def connect(last_zxid: int, timeout_ms: int, session_id: int, password: bytes) -> bytes:
    body = _CONNECT.pack(0, last_zxid, timeout_ms, session_id) + blob(password) + _FALSE
    return _INT.pack(len(body)) + body


def _path_and_data(path: str, data: bytes | None) -> bytes:
    return text(path) + blob(data)


def create_body(path: str, data: bytes | None, *, ephemeral: bool, acl: bytes = OPEN_ACL) -> bytes:
    return _path_and_data(path, data) + acl + _INT.pack(1 if ephemeral else 0)


def auth_body(scheme: str, credentials: bytes) -> bytes:
    return _INT.pack(0) + text(scheme) + blob(credentials)


def set_body(path: str, data: bytes | None, version: int) -> bytes:
    return _path_and_data(path, data) + _INT.pack(version)


def version_body(path: str, version: int) -> bytes:
    """Body of delete and check."""
    return text(path) + _INT.pack(version)


def read_body(path: str) -> bytes:
    """Body of getData, getChildren and exists, without a one-time watch."""
    return text(path) + _FALSE


def create(path: str, data: bytes, *, ephemeral: bool, acl: bytes = OPEN_ACL) -> Request:
    return Request(Op.CREATE2, create_body(path, data, ephemeral=ephemeral, acl=acl), False)


def create_sequential(path: str, data: bytes, *, acl: bytes = OPEN_ACL) -> Request:
    """An ephemeral node whose name ends with a number of the server's: see `created_path_of`."""
    return Request(Op.CREATE2, _path_and_data(path, data) + acl + _INT.pack(_EPHEMERAL_SEQUENTIAL), False)


def create_intermediate(path: str, acl: bytes = OPEN_ACL) -> Request:
    """A node without data, as a parent of others. Repeatable: the second attempt answers NODE_EXISTS."""
    return Request(Op.CREATE, create_body(path, None, ephemeral=False, acl=acl), True)


def set_data(path: str, data: bytes | None, version: int) -> Request:
    return Request(Op.SET_DATA, set_body(path, data, version), False)


def delete(path: str, version: int) -> Request:
    return Request(Op.DELETE, version_body(path, version), False)


def get_data(path: str) -> Request:
    return Request(Op.GET_DATA, read_body(path), True)


def exists(path: str) -> Request:
    return Request(Op.EXISTS, read_body(path), True)


def get_children(path: str) -> Request:
    return Request(Op.GET_CHILDREN, read_body(path), True)


def watch_tree(path: str) -> Request:
    """A persistent recursive watch (ZooKeeper 3.6 or newer)."""
    return Request(Op.ADD_WATCH, text(path) + _INT.pack(1), True)


def close_session() -> Request:
    """Repeatable: the second attempt finds the session ended."""
    return Request(Op.CLOSE_SESSION, b"", True)


def part(op: int, body: bytes) -> bytes:
    return _PART.pack(op, False, -1) + body


def multi(parts: Iterable[bytes]) -> Request:
    return Request(Op.MULTI, b"".join(parts) + _END, False)


def barrier() -> Request:
    """An empty transaction. After its answer, reads on this connection see every write that was confirmed before it.

    ZooKeeper's own `sync` does not promise that: it is no quorum operation (ZOOKEEPER-1675), and a leader answers a
    `sync` of its own client without waiting for commits that followers have applied already.
    """
    return Request(Op.MULTI, _END, True)


def count_below(path: str) -> Request:
    """Number of all descendants (ZooKeeper 3.6 or later)."""
    return Request(Op.COUNT_BELOW, text(path), True)


def read_many(op: int, paths: Iterable[str]) -> Request:
    head = _PART.pack(op, False, -1)
    return Request(Op.MULTI_READ, b"".join([head + read_body(path) for path in paths]) + _END, True)


# Answers -------------------------------------------------------------------------------------------------------------


def _text(raw: bytes, at: int) -> tuple[str, int]:
    (size,) = _INT.unpack_from(raw, at)
    end = at + 4 + size
    if size < 0 or end > len(raw):
        raise MalformedAnswer(f"a string of {size} bytes in an answer of {len(raw)}")
    return raw[at + 4 : end].decode(), end


def _blob(raw: bytes, at: int) -> tuple[bytes | None, int]:
    (size,) = _INT.unpack_from(raw, at)
    if size == -1:
        return None, at + 4
    end = at + 4 + size
    if size < 0 or end > len(raw):
        raise MalformedAnswer(f"a value of {size} bytes in an answer of {len(raw)}")
    return raw[at + 4 : end], end


def _stat(raw: bytes, at: int) -> tuple[Stat, int]:
    return Stat._make(_STAT.unpack_from(raw, at)), at + STAT_BYTES


def _texts(raw: bytes, at: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(raw, at)
    at += 4
    found = []
    for _ in range(count):
        one, at = _text(raw, at)
        found.append(one)
    return found, at


def header_of(raw: bytes) -> ReplyHeader:
    try:
        return ReplyHeader._make(_HEADER.unpack_from(raw))
    except struct.error as error:
        raise MalformedAnswer(f"an answer of {len(raw)} bytes has no header") from error


def frame_size(raw: bytes | bytearray, at: int) -> int | None:
    """Size of the frame that begins at `at`; None until its length has arrived."""
    if len(raw) - at < 4:
        return None
    size: int = _INT.unpack_from(raw, at)[0]
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise MalformedAnswer(f"an answer with a length of {size} bytes")
    return size


def connect_answer(raw: bytes) -> ConnectAnswer:
    try:
        _, timeout_ms, session_id = _CONNECT_ANSWER.unpack_from(raw)
        password, _ = _blob(raw, _CONNECT_ANSWER.size)
    except struct.error as error:
        raise MalformedAnswer(f"not a handshake: {raw[:40]!r}") from error
    if timeout_ms < 0:
        raise MalformedAnswer(f"a session timeout of {timeout_ms} ms")
    return ConnectAnswer(timeout_ms, session_id, password or b"")


def event_of(raw: bytes, zxid: int) -> Event:
    """From a frame with its header."""
    try:
        kind, _ = _TWO_INTS.unpack_from(raw, HEADER_BYTES)
        path, _ = _text(raw, HEADER_BYTES + 8)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedAnswer(f"not an event: {raw[:60]!r}") from error
    return Event(kind, path, zxid)


def stat_of(raw: bytes) -> Stat:
    """Answer of exists and setData."""
    try:
        return _stat(raw, 0)[0]
    except struct.error as error:
        raise MalformedAnswer(f"not a stat: {raw[:60]!r}") from error


def created_of(raw: bytes) -> Stat:
    """Answer of create2."""
    try:
        _, at = _text(raw, 0)
        return _stat(raw, at)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedAnswer(f"not a created node: {raw[:60]!r}") from error


def created_path_of(raw: bytes) -> str:
    """Answer of create2: the path, which the server has chosen for a sequential node."""
    try:
        return _text(raw, 0)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedAnswer(f"not a created node: {raw[:60]!r}") from error


def node_of(raw: bytes) -> Node:
    """Answer of getData."""
    try:
        data, at = _blob(raw, 0)
        return Node(data, _stat(raw, at)[0])
    except struct.error as error:
        raise MalformedAnswer(f"not a node: {raw[:60]!r}") from error


def count_of(raw: bytes) -> int:
    try:
        return int(_INT.unpack_from(raw)[0])
    except struct.error as error:
        raise MalformedAnswer(f"not a count: {raw[:60]!r}") from error


def children_of(raw: bytes) -> list[str]:
    """Answer of getChildren."""
    try:
        return _texts(raw, 0)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedAnswer(f"not a list of children: {raw[:60]!r}") from error


def multi_of(raw: bytes) -> list[MultiResult]:
    found: list[MultiResult] = []
    at = 0
    try:
        while True:
            kind, done, error = _PART.unpack_from(raw, at)
            at += _PART.size
            stat: Stat | None = None
            if done:
                return found
            if kind == Op.CREATE:
                _, at = _text(raw, at)
            elif kind == Op.CREATE2:
                _, at = _text(raw, at)
                stat, at = _stat(raw, at)
            elif kind == Op.SET_DATA:
                stat, at = _stat(raw, at)
            elif kind == -1:
                (error,) = _INT.unpack_from(raw, at)
                at += 4
            elif kind not in (Op.DELETE, Op.CHECK):
                raise MalformedAnswer(f"a multi with an unknown part {kind}")
            found.append(MultiResult(error, stat))
    except (struct.error, UnicodeDecodeError) as wrong:
        raise MalformedAnswer(f"not a multi: {raw[:60]!r}") from wrong


def nodes_of(raw: bytes) -> list[Node | int]:
    """Answer of a multi-read of getData: each node or its error number. Inlined, because bulk scans run it."""
    found: list[Node | int] = []
    at = 0
    end = len(raw)
    unpack_part, unpack_int, unpack_stat, make = _PART.unpack_from, _INT.unpack_from, _STAT.unpack_from, Stat._make
    try:
        while True:
            kind, done, _ = unpack_part(raw, at)
            if kind == 4:
                (size,) = unpack_int(raw, at + 9)
                start = at + 13
                if size >= 0:
                    at = start + size
                    if at > end:
                        raise MalformedAnswer(f"a value of {size} bytes in an answer of {end}")
                    data = raw[start:at]
                elif size == -1:
                    data, at = None, start
                else:
                    raise MalformedAnswer(f"a value of {size} bytes")
                found.append(Node(data, make(unpack_stat(raw, at))))
                at += 68
            elif done:
                return found
            elif kind == -1:
                found.append(unpack_int(raw, at + 9)[0])
                at += 13
            else:
                raise MalformedAnswer(f"a multi-read with an unknown part {kind}")
    except struct.error as wrong:
        raise MalformedAnswer(f"not a multi-read: {raw[:60]!r}") from wrong


def many_children_of(raw: bytes) -> list[list[str] | int]:
    """Answer of a multi-read of getChildren: the names of each node or its error number."""
    found: list[list[str] | int] = []
    at = 0
    try:
        while True:
            kind, done, _ = _PART.unpack_from(raw, at)
            at += _PART.size
            if done:
                return found
            if kind == Op.GET_CHILDREN:
                names, at = _texts(raw, at)
                found.append(names)
            elif kind == -1:
                found.append(_INT.unpack_from(raw, at)[0])
                at += 4
            else:
                raise MalformedAnswer(f"a multi-read with an unknown part {kind}")
    except (struct.error, UnicodeDecodeError) as wrong:
        raise MalformedAnswer(f"not a multi-read: {raw[:60]!r}") from wrong


def failed_part(results: Sequence[MultiResult]) -> tuple[int, int] | None:
    """(index, error) of the part that made a multi fail; None if it succeeded."""
    failed = [(index, result.error) for index, result in enumerate(results) if result.error]
    causes = [one for one in failed if one[1] != Code.RUNTIME_INCONSISTENCY]
    return (causes or failed)[0] if failed else None
