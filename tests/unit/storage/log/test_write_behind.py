"""When batches that are only in the log are due for the ledger files."""

from __future__ import annotations

from anabranch.storage.log.group_commit import Batch
from anabranch.storage.log.write_behind import WriteBehind


def batch(ledger: int, size: int, last: int = 0) -> Batch:
    made = Batch(ledger, 0, 0)
    made.end = size
    made.last_entry_id = last
    return made


def machine() -> WriteBehind:
    return WriteBehind(ledger_bytes=100, bytes_max=1000, age_max=1.0)


def test_a_ledger_is_due_by_size_age_or_total_memory() -> None:
    behind = machine()
    behind.add(batch(1, 60), 0.0)
    behind.add(batch(2, 60), 0.5)
    assert behind.take(0.6) == []
    assert behind.next_due() == 1.0
    behind.add(second := batch(2, 60), 0.6)
    (chosen,) = behind.take(0.6)
    assert chosen[1] is second
    assert behind.take(2.0) == [], "one at a time"
    assert [one.ledger_id for one in behind.done()] == [2]
    (chosen,) = behind.take(1.0)
    assert chosen[0].ledger_id == 1
    behind.done()
    assert behind.is_empty
    assert behind.bytes == 0


def test_over_the_budget_everything_is_due() -> None:
    behind = machine()
    for ledger in range(20):
        behind.add(batch(ledger, 60), 0.0)
    assert behind.is_over
    assert len(behind.take(0.0)) == 20
    assert behind.is_over, "until it is written"
    behind.done()
    assert not behind.is_over


def test_failed_batches_are_queued_again_first() -> None:
    behind = machine()
    behind.add(first := batch(1, 200), 0.0)
    behind.take(0.0)
    behind.add(second := batch(1, 10), 0.0)
    assert behind.claim(1) is None, "on its way: a direct write would overtake"
    behind.failed(0.0)
    assert behind.bytes == 210
    assert behind.claim(1) == (first, second)
    assert behind.bytes == 0
    assert behind.claim(1) == ()


def test_deleted_ledger_is_not_requeued() -> None:
    behind = machine()
    behind.add(batch(1, 200), 0.0)
    behind.take(0.0)
    behind.add(batch(1, 20), 0.0)
    behind.drop(1)
    behind.failed(0.0)
    assert behind.is_empty
    assert behind.bytes == 0
