"""The writer's shell without bookies: what happens to appends after the ledger has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anabranch.runtime.clock import SystemClock
from anabranch.storage.bookkeeper.bookies import Bookies
from anabranch.storage.bookkeeper.errors import LedgerFenced
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, Quorums, Segment
from anabranch.storage.bookkeeper.ledger_nodes import LedgerNodes
from anabranch.storage.bookkeeper.ledger_writer import BookKeeperWriter
from anabranch.storage.bookkeeper.packets import Code
from anabranch.storage.interface import StoredEntry
from anabranch.zookeeper.address import Server
from anabranch.zookeeper.connection import Connection
from tests.support.traffic.ledger_calls import Sink, publish_time_of


class Host:
    """Delivers in the next turn, like the store."""

    def is_deliverable(self, writer: BookKeeperWriter) -> None:
        asyncio.get_running_loop().call_soon(writer.deliver)

    def spares(self, writer: BookKeeperWriter) -> list[str]:
        return []

    def bookie_failed(self, bookie: str, reason: str) -> None: ...

    def delivered(self, writer: BookKeeperWriter, entries: Sequence[StoredEntry]) -> None: ...


async def test_append_after_a_fence_that_hit_nothing_pending_fails_through_the_sink() -> None:
    """A late answer of the third replica tells it. The owner must open a new ledger, so it must not look like a refusal
    that passes."""
    clock = SystemClock()
    connection = Connection([Server("127.0.0.1", 1)], clock, timeout_ms=1000, request_s=1.0, renew_expired=True)
    writer = BookKeeperWriter(
        7,
        LedgerMetadata(Quorums(), (Segment(0, ("a:1", "b:1", "c:1")),)),
        0,
        nodes=LedgerNodes(connection, "/ledgers"),
        bookies=Bookies(clock, lambda bookie: ("127.0.0.1", 1), request_s=1.0),
        clock=clock,
        host=Host(),
        publish_time_of=publish_time_of,
    )
    sink = Sink()
    writer.on_add("c:1", 3, Code.FENCED)
    assert writer.append(b"00000001", 1, sink, None) == 0
    assert writer.append(b"00000002", 1, sink, None) == 1
    assert not sink.failed, "not inside the call"
    await sink.wait(2)
    assert [(ledger, entry, type(error)) for ledger, entry, error in sink.failed] == [
        (7, 0, LedgerFenced),
        (7, 1, LedgerFenced),
    ]
