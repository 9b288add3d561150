"""The tail cache: one budget over all ledgers, oldest first, never an entry that is not in its file."""

from __future__ import annotations

from anabranch.storage.interface import StorageError, StoredEntry
from anabranch.storage.ledger.sparse_index import SparseIndex
from anabranch.storage.log.append_gate import AppendGate
from anabranch.storage.log.group_commit import Batch
from anabranch.storage.log.open_ledger import OpenLedger
from anabranch.storage.tail_cache import DROPPED_MAX, ENTRY_OVERHEAD_BYTES, TailCache

COST = 1_000


class NullSink:
    def appended(self, entries: object, contexts: object) -> None: ...

    def append_failed(self, entry: StoredEntry, context: object, error: StorageError) -> None: ...


def ledger(ledger_id: int) -> OpenLedger:
    return OpenLedger(ledger_id, AppendGate(), lambda batch: None, SparseIndex(1 << 20, 1 << 10), lambda payload: 0)


def land(cache: TailCache[OpenLedger], into: OpenLedger) -> None:
    """One durable entry of the ledger; it costs `COST`."""
    entry = into.append(b"x", 1, NullSink(), None)
    batch = into._batch
    assert isinstance(batch, Batch)
    into.close_batch()
    cache.add(into, entry, 1, COST - ENTRY_OVERHEAD_BYTES)
    into.on_durable(batch)


def write(cache: TailCache[OpenLedger], of: OpenLedger, upto: int) -> None:
    of.written_entry_id = upto
    cache.written(of)


def test_oldest_entries_of_all_ledgers_are_evicted_first() -> None:
    gone: list[int] = []
    cache: TailCache[OpenLedger] = TailCache(2 * COST, lambda evicted: gone.append(evicted.ledger_id))
    one, two = ledger(1), ledger(2)
    for each in (one, two, one):
        land(cache, each)
        write(cache, each, each.durable_entry_id)
    cache.trim()
    assert (gone, one.cache_first, two.cache_first, cache.bytes) == ([1], 1, 0, 2 * COST)


def test_unwritten_entries_stay_and_do_not_block_others() -> None:
    cache: TailCache[OpenLedger] = TailCache(2 * COST, lambda evicted: None)
    slow, fast = ledger(1), ledger(2)
    land(cache, slow)
    for _ in range(10):
        land(cache, fast)
        write(cache, fast, fast.durable_entry_id)
        cache.trim()
        assert cache.bytes <= 2 * COST
    assert list(slow.cache) == [0]
    assert list(fast.cache) == [9]


def test_set_aside_entries_are_evicted_next_once_written() -> None:
    cache: TailCache[OpenLedger] = TailCache(COST, lambda evicted: None)
    slow, fast = ledger(1), ledger(2)
    land(cache, slow)
    land(cache, slow)
    land(cache, fast)
    write(cache, fast, 0)
    cache.trim()
    assert (list(slow.cache), list(fast.cache)) == ([0, 1], [])
    write(cache, slow, 0)
    cache.trim()
    assert list(slow.cache) == [1]
    land(cache, fast)
    write(cache, slow, 1)
    cache.trim()
    assert (list(slow.cache), list(fast.cache)) == ([], [1])


def test_entries_of_one_ledger_are_evicted_in_order() -> None:
    cache: TailCache[OpenLedger] = TailCache(3 * COST, lambda evicted: None)
    slow, fast = ledger(1), ledger(2)
    for _ in range(6):
        land(cache, slow)
    cache.trim()
    assert list(slow.cache) == [0, 1, 2, 3, 4, 5], "all stepped aside"
    for upto in (2, 3, 5):
        write(cache, slow, upto)
        land(cache, fast)
        write(cache, fast, fast.durable_entry_id)
        cache.trim()
        assert list(slow.cache) == list(range(slow.cache_first, 6))
    assert cache.bytes <= 3 * COST


def test_dropped_ledger_frees_its_bytes_and_entries_at_once() -> None:
    cache: TailCache[OpenLedger] = TailCache(10 * COST, lambda evicted: None)
    doomed, other = ledger(1), ledger(2)
    for each in (doomed, other, doomed):
        land(cache, each)
    cache.drop(doomed)
    assert (cache.bytes, doomed.cache, doomed.cache_first) == (COST, {}, 2)
    assert list(other.cache) == [0]
    cache.drop(doomed)  # again: nothing
    assert cache.bytes == COST


def test_ledger_with_entries_set_aside_can_be_dropped() -> None:
    cache: TailCache[OpenLedger] = TailCache(0, lambda evicted: None)
    doomed = ledger(1)
    for _ in range(3):
        land(cache, doomed)
    cache.trim()
    write(cache, doomed, 0)  # the first is ready, two are aside
    cache.drop(doomed)
    cache.trim()
    assert (cache.bytes, doomed.cache) == (0, {})


def test_chunks_of_dropped_ledgers_do_not_delay_eviction_of_others() -> None:
    cache: TailCache[OpenLedger] = TailCache(COST, lambda evicted: None)
    doomed, other = ledger(1), ledger(2)
    for each in (doomed, other, other):
        land(cache, each)
        write(cache, each, each.durable_entry_id)
    cache.drop(doomed)
    cache.trim()
    assert (cache.bytes, list(other.cache)) == (COST, [1])


def test_queue_stays_short_while_ledgers_come_and_go() -> None:
    cache: TailCache[OpenLedger] = TailCache(1_000_000 * COST, lambda evicted: None)
    kept = ledger(0)
    land(cache, kept)
    for number in range(1, 10 * DROPPED_MAX):
        one = ledger(number)
        land(cache, one)
        cache.drop(one)
        assert len(cache) <= DROPPED_MAX + 2
    assert (cache.bytes, list(kept.cache)) == (COST, [0])
