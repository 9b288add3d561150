"""Clients without a word for leaving: who has closed everything it was given is gone, and nobody else."""

from __future__ import annotations

from anabranch.controller.group.implicit_leave import ImplicitLeaveDetector


def test_whoever_closed_all_its_readers_is_gone() -> None:
    told = ImplicitLeaveDetector()
    told.given(1, [4, 5])
    told.given(2, [6])
    assert [told.closed(1, 4), told.closed(1, 4), told.closed(1, 5)] == [False, False, True]
    assert told.closed(2, 6)


def test_what_was_taken_from_it_says_nothing() -> None:
    told = ImplicitLeaveDetector()
    told.given(1, [4, 5])
    told.given(1, [4])
    assert not told.closed(1, 5)
    assert not told.closed(3, 4), "nobody knows it"
    assert told.closed(1, 4)


def test_what_is_given_again_is_not_closed() -> None:
    told = ImplicitLeaveDetector()
    told.given(1, [4, 5])
    assert not told.closed(1, 4)
    told.given(1, [5])
    told.given(1, [4, 5])
    assert [told.closed(1, 5), told.closed(1, 4)] == [False, True]


def test_what_it_keeps_stays_closed() -> None:
    told = ImplicitLeaveDetector()
    told.given(1, [4, 5])
    assert not told.closed(1, 4)
    told.given(1, [4, 5, 6])
    assert [told.closed(1, 5), told.closed(1, 6)] == [False, True]


def test_the_forgotten_begin_anew() -> None:
    told = ImplicitLeaveDetector()
    told.given(1, [4])
    told.forget(1)
    assert not told.closed(1, 4)
    told.given(1, [4, 5])
    assert not told.closed(1, 4)
