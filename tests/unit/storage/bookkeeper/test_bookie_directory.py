"""Choice among the bookies that are registered."""

from __future__ import annotations

from random import Random

import pytest

from anabranch.storage.bookkeeper.bookie_directory import BookieDirectory
from anabranch.storage.bookkeeper.errors import NotEnoughBookies
from tests.support.in_memory.topic_log import ManualClock


def directory() -> BookieDirectory:
    made = BookieDirectory("/ledgers", ManualClock(), Random(7), lambda: None)
    made.writable = frozenset("abcde")
    made.racks = {"a": "r1", "b": "r1", "c": "r1", "d": "r2", "e": "r2"}
    return made


def test_spares_of_a_second_rack_come_first() -> None:
    assert set(directory().spares(["a", "b"])[:2]) == {"d", "e"}
    assert set(directory().spares(["d"])[:3]) == {"a", "b", "c"}


def test_bookies_in_quarantine_come_last_until_it_ends() -> None:
    clock = ManualClock()
    made = BookieDirectory("/ledgers", clock, Random(7), lambda: None)
    made.writable = frozenset("abcd")
    made.put_in_quarantine("b")
    assert made.spares([])[-1] == "b"
    assert "b" not in made.ensemble(3, 3)
    clock.advance(60)
    assert made.quarantined == frozenset()


def test_new_ledger_has_fewer_copies_only_if_that_is_allowed() -> None:
    made = directory()
    made.writable = frozenset("ab")
    assert set(made.ensemble(3, 2)) == {"a", "b"}
    with pytest.raises(NotEnoughBookies, match="needs 3 writable bookies, 2 are there"):
        made.ensemble(3, 3)
    made.writable = frozenset("a")
    with pytest.raises(NotEnoughBookies, match="needs 2 writable bookies, 1 are there"):
        made.ensemble(3, 2)
