"""The messages of one opened body, not yet in any form: it was looked at and keeps to the layout. Whoever has it takes
columns for many messages, or lists of Python objects for a few. Knows the batch layout only through the codecs.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from anabranch.protocol.codec.columns import Columns


class Listing(NamedTuple):
    """One list per field, a row each. Slots that compaction has emptied are left out."""

    indexes: Sequence[int]  # number of the message within its body
    values: list[bytes | None]  # None: a null value, a tombstone
    keys: list[str | bytes | None]  # as the sender gave them: text or bytes
    sequence_ids: list[int]  # NO_SEQUENCE: the message does not say
    event_times: list[int] | None  # ms, 0 where there is none; None: no message has one
    properties: list[dict[str, str]] | None  # None: no message has any


class Rows(Protocol):
    """What `core.opened(body, messages)` gives."""

    @property
    def count(self) -> int:
        """Messages that are there."""

    def values(self) -> list[bytes | None]: ...

    def keys(self) -> list[str | bytes | None]: ...

    def listing(self) -> Listing: ...

    def columns(self) -> Columns: ...


def key_of(text: str, is_base64: bool) -> str | bytes:
    """As the sender gave it."""
    if is_base64:
        try:
            return binascii.a2b_base64(text)
        except (binascii.Error, ValueError):  # says it is base64 and is not: the text is all there is
            pass
    return text
