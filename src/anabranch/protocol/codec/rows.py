"""The messages of one validated body, before decoding: as columns for many messages, or as Python lists for a few."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from anabranch.protocol.codec.columns import Columns


class Listing(NamedTuple):
    """One list per field, one element per row. Slots emptied by compaction are omitted."""

    indexes: Sequence[int]  # number of the message within its body
    values: list[bytes | None]  # None: a null value, a tombstone
    keys: list[str | bytes | None]  # as the sender gave them: text or bytes
    sequence_ids: list[int]  # NO_SEQUENCE: the message has none
    event_times: list[int] | None  # ms, 0: none; None: no message has one
    properties: list[dict[str, str]] | None  # None: no message has any


class Rows(Protocol):
    """Result of `core.opened(body, messages)`."""

    @property
    def count(self) -> int:
        """Number of messages, without emptied slots."""

    def values(self) -> list[bytes | None]: ...

    def keys(self) -> list[str | bytes | None]: ...

    def listing(self) -> Listing: ...

    def columns(self) -> Columns: ...


def key_of(text: str, is_base64: bool) -> str | bytes:
    """A key as the sender gave it."""
    if is_base64:
        try:
            return binascii.a2b_base64(text)
        except (binascii.Error, ValueError):  # declared as base64 but is not: return the text
            pass
    return text
