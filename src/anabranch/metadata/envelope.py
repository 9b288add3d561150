"""Versions and times that survive a move between stores. Pure: bytes and numbers, no store, no I/O.

A store numbers writes in its own way and most cannot be told a number. So what the house sees is a *logical* version:

    record written here        logical = native + offset           raw value (etcd has no times: enveloped)
    record moved in here       logical = the one in its envelope   always below the offset

`offset` is one number per store (`raise_versions`), 0 in a store that nothing was moved into. A record loses its moved
envelope with its first ordinary write. Values that begin like an envelope are wrapped in a plain one, so that any bytes
can be stored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = b"\0PM1"
_HEAD = struct.Struct(">4sBqqq")
HEAD_BYTES = _HEAD.size

_PLAIN = 0  # only protects a value that begins with the magic, or carries times
_MOVED = 1  # the version counts


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a stored value says about itself. `version` is None unless the record was moved in."""

    value: bytes
    version: int | None
    created_ms: int
    modified_ms: int


def wrap_moved(value: bytes, version: int, created_ms: int, modified_ms: int) -> bytes:
    return _HEAD.pack(MAGIC, _MOVED, version, created_ms, modified_ms) + value


def wrap_timed(value: bytes, created_ms: int, modified_ms: int) -> bytes:
    """For stores without times: every record carries them."""
    return _HEAD.pack(MAGIC, _PLAIN, 0, created_ms, modified_ms) + value


def wrap_raw(value: bytes) -> bytes:
    """For stores with times: the value itself unless it looks like an envelope."""
    return wrap_timed(value, 0, 0) if value.startswith(MAGIC) else value


def unwrap(stored: bytes) -> Envelope | None:
    """None when the stored bytes are the value itself."""
    if len(stored) < HEAD_BYTES or not stored.startswith(MAGIC):
        return None
    _, flags, version, created_ms, modified_ms = _HEAD.unpack_from(stored)
    return Envelope(stored[HEAD_BYTES:], version if flags & _MOVED else None, created_ms, modified_ms)


@dataclass(frozen=True, slots=True)
class Numbering:
    """How one store's own numbers become logical ones; kept in the store under `/.meta/epoch`."""

    offset: int = 0
    native_end: int = -1
    """Native numbers up to this one may belong to records that were moved in (etcd: the revision when the copy ended).

    A token that translates to such a number may be invented, so it is checked by reading.
    """

    def logical(self, native: int) -> int:
        return native + self.offset

    def native(self, logical: int) -> int | None:
        """The native number to compare with, or None: only reading the record can tell."""
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
