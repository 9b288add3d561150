"""What this broker stores in front of each payload: counters of the ledger so far, which replace an index file.

    version u8 | messages of this entry u32 | messages before it i64 | highest publish time so far i64   (big endian)

One read of entry N answers "how many messages before N". The highest publish time never falls from entry to entry, so
a binary search finds the first entry of a given time.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from anabranch.storage.interface import Payload

VERSION = 1
_HEAD = struct.Struct(">BIqq")
ENTRY_HEAD_BYTES = _HEAD.size


class EntryHead(NamedTuple):
    messages: int
    messages_before: int  # in this ledger
    publish_ms_max: int  # up to and including this entry

    @property
    def messages_upto(self) -> int:
        return self.messages_before + self.messages


def with_head(head: EntryHead, payload: Payload) -> bytes:
    return _HEAD.pack(VERSION, *head) + payload


def split_head(stored: memoryview) -> tuple[EntryHead, memoryview] | None:
    """Head and payload. None if another program, or a later version, has written the entry."""
    if len(stored) < ENTRY_HEAD_BYTES or stored[0] != VERSION:
        return None
    return EntryHead(*_HEAD.unpack_from(stored)[1:]), stored[ENTRY_HEAD_BYTES:]
