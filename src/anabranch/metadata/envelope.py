"""Versions and times that survive a move between stores. Pure: bytes and numbers.

A store numbers writes in its own way, and most cannot be given a number. So the port shows a *logical* version:

    record written here        logical = native + offset           raw value (etcd has no times: enveloped)
    record moved in here       logical = the one in its envelope   always below the offset

`offset` is one number per store (`raise_versions`), 0 in a store that nothing was moved into. A record loses its moved
envelope with its first ordinary write. A value that begins like an envelope is wrapped in a plain one, so that any
bytes can be stored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

MAGIC = b"\0PM1"
_HEAD = struct.Struct(">4sBqqq")
HEAD_BYTES = _HEAD.size

_PLAIN = 0  # protects a value that begins with the magic, or has times
_MOVED = 1  # the version is valid


class Envelope(NamedTuple):
    """The header of a stored value. `version` is None unless the record was moved in. A tuple, because scans make one
    for every record."""

    value: bytes
    version: int | None
    created_ms: int
    modified_ms: int


def wrap_moved(value: bytes, version: int, created_ms: int, modified_ms: int) -> bytes:
    return _HEAD.pack(MAGIC, _MOVED, version, created_ms, modified_ms) + value


def wrap_timed(value: bytes, created_ms: int, modified_ms: int) -> bytes:
    """For stores without times: every record has them in its envelope."""
    return _HEAD.pack(MAGIC, _PLAIN, 0, created_ms, modified_ms) + value


def wrap_raw(value: bytes) -> bytes:
    """For stores with times: the value itself unless it looks like an envelope."""
    return wrap_timed(value, 0, 0) if value.startswith(MAGIC) else value


def unwrap(stored: bytes) -> Envelope | None:
    """None if the stored bytes are the value itself."""
    if len(stored) < HEAD_BYTES or not stored.startswith(MAGIC):
        return None
    _, flags, version, created_ms, modified_ms = _HEAD.unpack_from(stored)
    return Envelope(stored[HEAD_BYTES:], version if flags & _MOVED else None, created_ms, modified_ms)


@dataclass(frozen=True, slots=True)
class Numbering:
    """Maps a store's native versions to logical ones; stored under `/.meta/epoch`."""

    offset: int = 0
    native_end: int = -1
    """Native versions up to this one may belong to moved records (etcd: the revision when the copy ended).

    A logical version that maps to such a number must be checked by reading the record.
    """

    def logical(self, native: int) -> int:
        return native + self.offset

    def native(self, logical: int) -> int | None:
        """The native version to compare with; None if the record must be read first."""
        if self.offset == 0:
            return logical
        native = logical - self.offset
        return None if native <= max(self.native_end, -1) or native < 0 else native

    def to_bytes(self) -> bytes:
        return f"{self.offset} {self.native_end}".encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Numbering:
        offset, native_end = stored.split()
        return cls(int(offset), int(native_end))
