"""The counters in front of each payload."""

from __future__ import annotations

import pytest

from anabranch.storage.bookkeeper.entry_head import ENTRY_HEAD_BYTES, EntryHead, split_head, with_head


def test_head_and_payload_come_back() -> None:
    head = EntryHead(messages=3, messages_before=2**40, publish_ms_max=1_700_000_000_000)
    stored = with_head(head, b"payload")
    assert stored[:5] == b"\x01\x00\x00\x00\x03", "the stored format does not change"
    found = split_head(memoryview(stored))
    assert found is not None
    assert (found[0], bytes(found[1])) == (head, b"payload")
    assert head.messages_upto == 2**40 + 3


@pytest.mark.parametrize("stored", [b"", b"\x02" + bytes(40), bytes(ENTRY_HEAD_BYTES - 1)])
def test_other_entries_are_told_apart(stored: bytes) -> None:
    assert split_head(memoryview(stored)) is None
