"""Producer access modes: admission, waiting, fencing, and the topic epoch."""

from __future__ import annotations

import pytest

from anabranch.broker.errors import ProducerBusy, ProducerFenced
from anabranch.broker.publish.producer_access import AccessMode, AccessTable, Admission

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode
Table = AccessTable[str]


def test_shared_producers_live_together_without_an_epoch() -> None:
    table = Table()
    assert table.admit("a", SHARED, None) == Admission(True, None)
    assert table.admit("b", SHARED, None) == Admission(True, None)
    assert table.epoch == 0


def test_exclusive_raises_the_epoch_and_excludes_others() -> None:
    table = Table(epoch=4)
    assert table.admit("a", EXCLUSIVE, None) == Admission(True, 5)
    with pytest.raises(ProducerBusy):
        table.admit("b", SHARED, None)
    with pytest.raises(ProducerFenced):
        table.admit("b", EXCLUSIVE, None)
    assert table.leave("a") is None
    assert table.admit("b", EXCLUSIVE, None) == Admission(True, 6)


def test_exclusive_is_refused_beside_shared_ones() -> None:
    table = Table()
    table.admit("a", SHARED, None)
    with pytest.raises(ProducerFenced):
        table.admit("b", EXCLUSIVE, None)
    assert (table.holders, table.exclusive, table.epoch) == (["a"], None, 0)


def test_waiting_producers_are_crowned_in_turn() -> None:
    table = Table()
    table.admit("a", EXCLUSIVE, None)
    assert table.admit("b", WAIT, None) == Admission(False, None)
    assert table.admit("c", WAIT, None) == Admission(False, None)
    assert table.leave("a") == "b"
    assert (table.exclusive, table.epoch) == ("b", 2)
    assert table.leave("b") == "c"
    assert table.leave("c") is None
    assert table.exclusive is None


def test_waiting_producer_is_promoted_after_the_last_shared_one() -> None:
    table = Table()
    table.admit("a", SHARED, None)
    table.admit("b", SHARED, None)
    table.admit("w", WAIT, None)
    with pytest.raises(ProducerBusy):
        table.admit("late", SHARED, None)
    assert table.leave("a") is None
    assert table.leave("b") == "w"


def test_waiting_producer_may_leave() -> None:
    table = Table()
    table.admit("a", EXCLUSIVE, None)
    table.admit("b", WAIT, None)
    assert table.leave("b") is None
    assert table.leave("a") is None
    assert not table.holders


def test_wait_on_an_empty_topic_is_exclusive_at_once() -> None:
    assert Table().admit("a", WAIT, None) == Admission(True, 1)


def test_fencing_closes_holders_and_waiting_producers() -> None:
    table = Table()
    table.admit("a", EXCLUSIVE, None)
    table.admit("w", WAIT, None)
    assert table.admit("b", FENCING, None) == Admission(True, 2, ("a", "w"))
    assert (table.holders, table.exclusive, list(table.waiting)) == (["b"], "b", [])
    assert table.leave("a") is None, "the fenced one's late goodbye changes nothing"
    assert table.exclusive == "b"


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_an_older_epoch_is_fenced(mode: AccessMode) -> None:
    with pytest.raises(ProducerFenced):
        Table(epoch=3).admit("a", mode, 2)


def test_a_returning_holder_keeps_its_epoch() -> None:
    table = Table(epoch=3)
    assert table.admit("a", EXCLUSIVE, 3) == Admission(True, 3)


def test_leave_of_unknown_producer_is_ignored() -> None:
    assert Table().leave("unknown") is None
