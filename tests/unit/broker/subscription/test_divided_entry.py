"""Entries whose messages are at several consumers."""

from __future__ import annotations

from anabranch.broker.subscription.divided_entry import DividedEntry, Share


def test_every_message_is_held_by_one_consumer_or_waits() -> None:
    entry: DividedEntry[str] = DividedEntry(6, waiting=0b111111)
    entry.deliver("a", 0b111111)
    assert entry.give_back("a", 0b000110) == 0b000110
    assert entry.give_back("a", 0b000110) == 0, "they are no longer there"
    assert entry.give_back("b") == 0
    entry.deliver("b", 0b000010)
    assert (entry.held, entry.waiting) == ({"a": 0b111001, "b": 0b000010}, 0b000100)
    assert entry.give_back("a") == 0b111001
    assert (entry.held, entry.waiting) == ({"b": 0b000010}, 0b111101)


def test_acknowledged_messages_leave_holders_and_the_waiting() -> None:
    entry: DividedEntry[str] = DividedEntry(4, waiting=0b1111)
    entry.deliver("a", 0b0011)
    entry.deliver("b", 0b0100)
    assert entry.acknowledge(0b0001) == [Share("a", 1, 1), Share("b", 0, 1)]
    assert (entry.held, entry.waiting) == ({"a": 0b0001}, 0)
    assert entry.acknowledge(0b0001) == []
