"""Group commit: where each batch is written, and what happens to a failed group."""

from __future__ import annotations

from typing import Any, cast

from anabranch.storage.ledger.record_format import HEADER_BYTES
from anabranch.storage.log.group_commit import LOG_START, Batch, Direct, GroupCommit, choose_direct


def batch(ledger: int, size: int, offset: int = 32) -> Batch:
    made = Batch(ledger, offset, 0)
    made.end = offset + size
    made.entries = cast(Any, [None])
    made.pieces = [bytes(size)]
    return made


def nothing_waits(_: int) -> tuple[Batch, ...]:
    return ()


def test_small_batches_of_all_ledgers_share_one_log_write() -> None:
    group = GroupCommit(log_bytes_max=10_000, direct_bytes_min=1000)
    batches = [batch(ledger, 100) for ledger in range(5)]
    for one in batches:
        group.gather(one)
    plan = group.start(nothing_waits)
    assert plan.logged == tuple(batches)
    assert plan.direct == ()
    assert (plan.log_number, plan.log_place, plan.log_bytes, plan.rolls) == (1, LOG_START, HEADER_BYTES + 500, False)
    assert not group.has_work
    assert group.finish() is plan
    assert group.log_place == LOG_START + HEADER_BYTES + 500


def test_the_two_largest_batches_are_written_directly() -> None:
    batches = [batch(1, 2000), batch(2, 900), batch(3, 3000), batch(4, 1000)]
    assert choose_direct(batches, 1000) == {1, 3}
    group = GroupCommit(log_bytes_max=10_000, direct_bytes_min=1000)
    for one in batches:
        group.gather(one)
    waiting = batch(3, 50)
    plan = group.start(lambda ledger: (waiting,) if ledger == 3 else ())
    assert plan.logged == (batches[1], batches[3])
    assert plan.direct == (Direct(batches[0], ()), Direct(batches[2], (waiting,)))


def test_ledger_with_a_write_under_way_is_not_written_directly() -> None:
    group = GroupCommit(log_bytes_max=10_000, direct_bytes_min=1000)
    group.gather(batch(1, 2000))
    plan = group.start(lambda _: None)
    assert [one.ledger_id for one in plan.logged] == [1]


def test_group_of_direct_batches_does_not_write_the_log() -> None:
    group = GroupCommit(log_bytes_max=10_000, direct_bytes_min=1000)
    group.gather(batch(1, 2000))
    assert group.start(nothing_waits).log_bytes == 0
    group.finish()
    assert group.log_place == LOG_START


def test_the_log_rolls_when_the_next_group_does_not_fit() -> None:
    group = GroupCommit(log_bytes_max=LOG_START + 3000, direct_bytes_min=10_000)
    places = []
    for _ in range(4):
        group.gather(batch(1, 1400))
        plan = group.start(nothing_waits)
        places.append((plan.log_number, plan.log_place, plan.group_number, plan.rolls))
        group.finish()
    step = HEADER_BYTES + 1400
    assert places == [
        (1, LOG_START, 0, False),
        (1, LOG_START + step, 1, False),
        (2, LOG_START, 0, True),
        (2, LOG_START + step, 1, False),
    ]


def test_group_larger_than_a_log_file_is_written() -> None:
    group = GroupCommit(log_bytes_max=8000, direct_bytes_min=1 << 30)
    group.gather(batch(1, 20_000))
    plan = group.start(nothing_waits)
    assert not plan.rolls
    group.finish()
    group.gather(batch(1, 1))
    assert group.start(nothing_waits).rolls


def test_next_group_reuses_the_place_of_a_failed_one() -> None:
    group = GroupCommit(log_bytes_max=10_000, direct_bytes_min=1000)
    first, behind_it = batch(1, 100), batch(2, 100)
    group.gather(first)
    group.start(nothing_waits)
    group.gather(behind_it)
    plan, gathered = group.abort()
    assert plan.logged == (first,)
    assert gathered == [behind_it]
    assert not group.has_work
    group.gather(batch(3, 10))
    assert group.start(nothing_waits).log_place == LOG_START


def test_small_records_are_joined_and_large_ones_are_not() -> None:
    small = Batch(1, 0, 0)
    small.entries = cast(Any, [None, None])
    small.pieces = [b"a", b"b", b"c", b"d"]
    small.end = 4
    small.compact()
    assert small.pieces == [b"abcd"]
    large = Batch(1, 0, 0)
    large.entries = cast(Any, [None])
    large.pieces = [bytes(40), bytes(5000)]
    large.end = 5040
    large.compact()
    assert len(large.pieces) == 2


def committed(group: GroupCommit, *, size: int = 100) -> tuple[int, bool]:
    """The number of the log file that the next group is written to, and whether it starts a checkpoint."""
    group.gather(batch(1, size))
    plan = group.start(nothing_waits)
    group.finish()
    return plan.log_number, plan.is_checkpoint


def test_wanted_checkpoint_rolls_the_log_once_a_spare_file_is_ready() -> None:
    group = GroupCommit(log_bytes_max=1 << 20, direct_bytes_min=1 << 20, log_number=2)
    assert committed(group) == (2, False)
    assert not group.asks_for_spare()
    group.want_checkpoint()
    assert committed(group) == (2, False), "on a full device there may be no room for another file"
    assert group.asks_for_spare() and not group.asks_for_spare()
    group.spare_ready()
    assert committed(group) == (3, True)
    assert committed(group) == (3, False)
    assert not group.asks_for_spare()


def test_spare_file_replaces_only_the_first_file_early() -> None:
    group = GroupCommit(log_bytes_max=1 << 20, direct_bytes_min=1 << 20)
    assert committed(group) == (1, False)
    group.spare_ready()
    assert committed(group) == (2, False)
    group.spare_ready()
    assert committed(group) == (2, False)


def test_wanted_checkpoint_survives_a_failed_group() -> None:
    group = GroupCommit(log_bytes_max=1 << 20, direct_bytes_min=1 << 20, log_number=2)
    committed(group)
    group.want_checkpoint()
    group.spare_ready()
    group.gather(batch(1, 100))
    assert group.start(nothing_waits).is_checkpoint
    group.abort()
    assert committed(group) == (3, True)
