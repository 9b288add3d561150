"""Which ledgers a log would bring back: listed once, as long as the log holds them."""

from __future__ import annotations

from anabranch.storage.log.logged_ledgers import LoggedLedgers


def logged(**of: int) -> LoggedLedgers:
    found = LoggedLedgers()
    for name, number in of.items():
        found.last_log[int(name[1:])] = number
    return found


def test_closed_ledgers_are_listed_once() -> None:
    ledgers = logged(l1=1, l2=1, l3=2)
    assert sorted(ledgers.release(lambda one: one != 2)) == [1, 3]
    assert ledgers.release(lambda one: one != 2) == []
    assert ledgers.release(lambda one: True) == [2]


def test_a_deleted_one_must_be_listed_only_when_the_log_holds_it_and_the_list_does_not() -> None:
    ledgers = logged(l1=1, l2=1)
    ledgers.release(lambda one: one == 2)
    assert ledgers.forget(1)
    assert not ledgers.forget(2)  # listed already
    assert not ledgers.forget(3)  # never logged, or long in its file
    assert not ledgers.forget(1)


def test_what_its_last_log_file_held_is_forgotten_with_the_file() -> None:
    ledgers = logged(l1=1, l2=2)
    ledgers.release(lambda one: True)
    ledgers.retired(1)
    assert ledgers.last_log == {2: 2}
    ledgers.last_log[1] = 3  # written again, in a later file: the old listing does not speak for it
    assert ledgers.release(lambda one: True) == [1]
    ledgers.retired(3)
    assert ledgers.last_log == {} and not ledgers.forget(2)
