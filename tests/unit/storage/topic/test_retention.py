"""The retention rule as a table."""

from __future__ import annotations

import pytest

from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.storage.ledger.ledger_chain import ChainLedger
from anabranch.storage.topic.retention import ledgers_to_drop

NOW = 1_000_000
LEDGERS = [
    ChainLedger(1, entries=10, bytes=100, sealed=True, sealed_at_ms=NOW - 3000),
    ChainLedger(2, entries=10, bytes=100, sealed=True, sealed_at_ms=NOW - 2000),
    ChainLedger(3, entries=10, bytes=100, sealed=True, sealed_at_ms=NOW - 1000),
    ChainLedger(4, entries=5, bytes=50),
]


@pytest.mark.parametrize(
    ("slowest", "retention_ms", "retention_bytes", "dropped"),
    [
        (None, 0, 0, 3),  # no cursors: all is consumed; the open ledger stays
        (LATEST, 0, 0, 3),
        (EARLIEST, 0, 0, 0),
        (Position(2, 8), 0, 0, 1),
        (Position(2, 9), 0, 0, 2),
        (Position(3, -1), 0, 0, 2),
        (LATEST, -1, -1, 0),
        (LATEST, 1500, -1, 2),
        (LATEST, 2000, -1, 2),
        (LATEST, 2001, -1, 1),
        (LATEST, 10_000, -1, 0),
        (LATEST, -1, 200, 2),
        (LATEST, -1, 10_000, 0),
        (LATEST, 10_000, 200, 2),  # either limit is enough
        (LATEST, 1500, 10_000, 2),
        (LATEST, 10_000, 0, 3),  # one value 0: nothing is kept
        (LATEST, 0, -1, 3),
        (Position(1, 9), 0, 0, 1),
    ],
)
def test_rule(slowest: Position | None, retention_ms: int, retention_bytes: int, dropped: int) -> None:
    assert (
        ledgers_to_drop(
            LEDGERS, slowest=slowest, now_ms=NOW, retention_ms=retention_ms, retention_bytes=retention_bytes
        )
        == dropped
    )


def test_the_last_ledger_of_a_terminated_topic_stays() -> None:
    assert ledgers_to_drop(LEDGERS[:3], slowest=None, now_ms=NOW, retention_ms=0, retention_bytes=0) == 2
    assert ledgers_to_drop([], slowest=None, now_ms=NOW, retention_ms=0, retention_bytes=0) == 0
