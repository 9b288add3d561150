"""What a fetch takes for a hole: entries that are missing, unless the broker leaves out what is no message."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from anabranch.model.position import Position
from anabranch.protocol.commands import BaseCommand
from anabranch.spark.client.entry_fetcher import EntryBuffer, Fetch, Hole
from anabranch.spark.offsets.partitions import Range


class Broker:
    """Delivers these entries to every reader at once."""

    timeout_s = 1.0

    def __init__(self, entries: Sequence[Position], *, is_filtered: bool) -> None:
        self._entries = entries
        self._is_filtered = is_filtered

    def attach(self, topic: str, entry_buffer: EntryBuffer, prefix: str) -> Future[None]:
        entry_buffer.is_filtered = self._is_filtered
        for at in self._entries:
            body = SimpleNamespace(message_id=SimpleNamespace(ledgerId=at.ledger, entryId=at.entry))
            entry_buffer.on_command(BaseCommand.MESSAGE, body, b"")
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def write(self, entry_buffer: EntryBuffer, data: bytes) -> None:
        """Permits are not counted."""

    def detach(self, entry_buffer: EntryBuffer) -> None:
        """Nothing is kept."""

    def pause(self, seconds: float) -> None:
        raise AssertionError("no retry is expected")


def fetched(entries: Sequence[Position], *, is_filtered: bool) -> tuple[list[Position], Fetch]:
    one = Range("t", 0, Position(5, 2), Position(8, 1), "t")
    fetch = Fetch(Broker(entries, is_filtered=is_filtered), one, prefetch_bytes=1, retries=0, backoff_ms=1)
    return [entry.position for found in fetch for entry in found], fetch


WITH_GAP = [Position(5, 2), Position(5, 4), Position(8, 0)]


def test_a_gap_in_a_ledger_is_a_hole() -> None:
    with pytest.raises(Hole):
        fetched(WITH_GAP, is_filtered=False)


def test_a_gap_is_none_where_entries_are_left_out() -> None:
    found, fetch = fetched(WITH_GAP, is_filtered=True)
    assert found == WITH_GAP
    assert fetch.crossed == [(Position(5, 5), Position(8, 0))], "whether that ledger ended there is checked"


def test_a_range_of_which_nothing_came_is_to_be_checked() -> None:
    found, fetch = fetched([Position(9, 3)], is_filtered=True)
    assert found == []
    assert fetch.crossed == [(Position(5, 2), Position(8, 1))]
