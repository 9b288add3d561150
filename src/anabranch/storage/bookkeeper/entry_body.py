"""Body of an entry, as bookies store it: 32 bytes of head, a CRC32C over head and payload, the payload.

    ledger i64 | entry i64 | last add confirmed i64 | length i64 | crc32c u32 | payload      (big endian)

`length` counts the payload bytes of the ledger up to and including this entry. Bookies check none of this, so every
body that is read is checked here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from anabranch.storage.interface import Payload

_HEAD = struct.Struct(">qqqq")
_DIGEST = struct.Struct(">I")
BODY_HEAD_BYTES = _HEAD.size + _DIGEST.size


class EntryBody(NamedTuple):
    ledger: int
    entry: int
    last_confirmed: int  # of the writer when it sent this entry
    length: int  # payload bytes of the ledger up to and including this entry
    payload: memoryview


def body_head(ledger: int, entry: int, last_confirmed: int, length: int, payload: Payload) -> bytes:
    """The bytes in front of the payload."""
    head = _HEAD.pack(ledger, entry, last_confirmed, length)
    return head + _DIGEST.pack(crc32c(payload, crc32c(head)))


def read_body(raw: Payload, ledger: int, entry: int | None) -> EntryBody | None:
    """None if the digest or an id does not match: the replica is bad. `entry` None: any entry of the ledger."""
    view = memoryview(raw)
    if len(view) < BODY_HEAD_BYTES:
        return None
    head, payload = view[: _HEAD.size], view[BODY_HEAD_BYTES:]
    (digest,) = _DIGEST.unpack_from(view, _HEAD.size)
    if crc32c(payload, crc32c(head)) != digest:
        return None
    found_ledger, found_entry, last_confirmed, length = _HEAD.unpack(head)
    body = EntryBody(found_ledger, found_entry, last_confirmed, length, payload)
    if body.ledger != ledger or (entry is not None and body.entry != entry):
        return None
    return body
