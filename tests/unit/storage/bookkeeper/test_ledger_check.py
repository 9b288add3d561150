"""What `ledgers check` calls under-replicated, missing and orphaned."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.storage.bookkeeper.ledger_check import LISTED_MAX, LedgerCheck, LedgerFacts, LedgerReport
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, Quorums, Segment
from anabranch.storage.topic.topic_record import LedgerUse

OURS, NOW, HOUR = "c1", 10_000_000, 3_600_000
OLD = NOW - 2 * HOUR
DATA = LedgerUse("persistent://t/n/x", "data")


def facts(
    ledger: int,
    *ensembles: str,
    owner: str = OURS,
    entries: int | None = 10,
    created_ms: int = OLD,
    quorums: Quorums | None = None,
) -> LedgerFacts:
    """`ensembles`: one letter per bookie; segments begin at 0, 5, 10 …"""
    segments = tuple(Segment(5 * at, tuple(members)) for at, members in enumerate(ensembles or ("abc",)))
    metadata = LedgerMetadata(quorums or Quorums(), segments, owner=owner)
    if entries is not None:
        metadata = metadata.closed(entries - 1, 10 * entries)
    return LedgerFacts(ledger, metadata, created_ms)


def checked(
    *fed: LedgerFacts, uses: Mapping[int, LedgerUse] | None = None, registered: Collection[str] = "abcd"
) -> LedgerReport:
    check = LedgerCheck(OURS, registered, copies=3, now_ms=NOW, age_min_ms=HOUR)
    for one in fed:
        check.feed(one)
    return check.end(uses or {})


def test_ledgers_that_records_name_are_sound() -> None:
    report = checked(facts(1), facts(2, entries=None), uses={1: DATA, 2: DATA})
    assert (report.own, report.open, report.entries, report.bytes) == (2, 1, 10, 100)
    assert report.under_replicated.count == report.orphans.count == report.missing.count == 0


def test_ledgers_of_other_programs_are_counted_and_never_orphans() -> None:
    report = checked(facts(1, owner=""), facts(2, owner="c2"))
    assert (report.own, report.foreign, report.orphans.count) == (0, 2, 0)


def test_a_cluster_without_an_id_has_no_orphans() -> None:
    check = LedgerCheck("", "abc", copies=3, now_ms=NOW, age_min_ms=0)
    check.feed(facts(1, owner=""))
    assert check.end({}).orphans.count == 0


def test_old_ledgers_without_a_name_are_orphans_and_young_ones_are_not() -> None:
    report = checked(facts(1), facts(2, created_ms=NOW - HOUR + 1), facts(3, created_ms=NOW - HOUR))
    assert report.orphans.first == [1, 3]
    assert report.young == 1


def test_a_bookie_that_is_away_leaves_too_few_copies_of_the_segments_it_is_in() -> None:
    gone = facts(1, "abc", "bcd")
    assert gone.copies("bcd") == 2 and gone.away("bcd") == ("a",)
    assert checked(gone, uses={1: DATA}, registered="bcd").under_replicated.first == [1]
    assert checked(facts(2, "bcd"), uses={2: DATA}, registered="bcd").under_replicated.count == 0


def test_segments_behind_the_last_entry_do_not_count() -> None:
    assert checked(facts(1, "bcd", "abc", entries=5), uses={1: DATA}, registered="bcd").under_replicated.count == 0
    assert checked(facts(1, "abc", entries=0), uses={1: DATA}, registered="bcd").under_replicated.count == 0


def test_a_ledger_that_began_with_fewer_copies_is_under_replicated() -> None:
    assert checked(facts(1, "ab", quorums=Quorums(2, 2, 2)), uses={1: DATA}).under_replicated.first == [1]


def test_unknown_are_ledgers_that_must_exist_and_were_not_fed() -> None:
    check = LedgerCheck(OURS, "abc", copies=3, now_ms=NOW, age_min_ms=HOUR)
    check.feed(facts(1))
    kinds = {2: "data", 3: "state", 4: "old-state", 5: "garbage", 6: "compacted", 7: "compacting"}
    uses = {1: DATA, **{ledger: LedgerUse("t", kind) for ledger, kind in kinds.items()}}
    assert list(check.unknown(uses)) == [2, 3, 6]


def test_lists_are_bounded_and_counts_are_not() -> None:
    report = checked(*(facts(ledger) for ledger in range(LISTED_MAX + 5)))
    assert report.orphans.count == LISTED_MAX + 5
    assert report.orphans.first == list(range(LISTED_MAX))
