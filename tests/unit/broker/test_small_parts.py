"""Small parts of the broker: windows, delayed entries, names, entry metadata, digests, merged stats."""

from __future__ import annotations

import pytest

from anabranch.broker.publish.producer import Window
from anabranch.broker.services import NameGenerator
from anabranch.broker.stats.topic_stats import merged
from anabranch.broker.subscription.delayed_delivery import DelayedEntries
from anabranch.broker.subscription.entry_metadata import batch_size_of, deliver_at_of, slot_of
from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import add_broker_metadata, build_batch, build_entry, seal_entry
from anabranch.protocol.keyhash import key_shared_slot
from anabranch.protocol.topics_hash import topics_hash
from anabranch.storage.interface import Payload
from anabranch.storage.topic.topic_log import StoredEntry


def at(entry: int) -> Position:
    return Position(1, entry)


def stored(payload: Payload) -> StoredEntry:
    return StoredEntry(at(0), 1, payload)


def test_window_closes_at_either_bound_and_opens_again() -> None:
    window = Window(10, 3)
    opens = []
    for size, messages in ((9, 1), (5, 1), (-5, -1), (0, 2)):
        if size >= 0:
            window.take(size, messages)
        else:
            window.give(-size, -messages)
        opens.append(window.is_open)
    assert opens == [True, False, True, False], "one entry may reach past the bound, the next one waits"
    with pytest.raises(AssertionError):
        window.give(100, 0)


def test_delayed_entries_are_due_in_position_order() -> None:
    delayed = DelayedEntries(3)
    delayed.add(300, at(1))
    delayed.add(100, at(5))
    delayed.add(200, at(2))
    delayed.add(999, at(2))
    assert (len(delayed), delayed.is_full, delayed.next_ms) == (3, True, 100)
    assert delayed.due(99) == []
    assert delayed.due(200) == [at(2), at(5)]
    assert (len(delayed), delayed.is_full, delayed.next_ms) == (1, False, 300)
    delayed.clear()
    assert (len(delayed), delayed.next_ms) == (0, None)


def test_given_names_are_all_different() -> None:
    giver = NameGenerator("x")
    assert len({giver.producer(), giver.producer(), giver.consumer(), giver.consumer()}) == 4


def delayed_entry(deliver_at: int, *, filler: int = 0) -> bytes:
    of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, deliver_at_time=deliver_at)
    if filler:
        of.properties.append(pb.KeyValue(key="k", value="v" * filler))
    return seal_entry(of, b"data")


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_deliver_at(wrap: type) -> None:
    assert deliver_at_of(stored(wrap(delayed_entry(12_345)))) == 12_345
    assert deliver_at_of(stored(wrap(build_entry(b"data")))) == 0
    assert deliver_at_of(stored(wrap(build_entry(b"\x98\x01")))) == 0, "only looks like it"
    assert deliver_at_of(stored(wrap(add_broker_metadata(delayed_entry(7), broker_timestamp=1, index=1)))) == 7


def test_deliver_at_behind_long_properties_is_found() -> None:
    assert deliver_at_of(stored(delayed_entry(12_345, filler=100_000))) == 12_345


@pytest.mark.parametrize("payload", [b"", b"\x0e", b"\x0e\x01\x98\x01", b"\x98\x01 no entry at all", b"\xff" * 40])
def test_invalid_entry_is_not_delayed(payload: bytes) -> None:
    assert deliver_at_of(stored(payload)) == 0


def test_slots() -> None:
    assert slot_of(stored(build_entry(b"x", key="user-1"))) == key_shared_slot(b"user-1")
    assert slot_of(stored(build_entry(b"x", key="a", ordering_key=b"o"))) == key_shared_slot(b"o")
    assert slot_of(stored(b"nonsense")) == key_shared_slot(b"NONE_KEY")


def test_batch_size() -> None:
    assert batch_size_of(build_entry(b"x")) == 0
    assert batch_size_of(build_batch([b"x"])) == 1
    assert batch_size_of(build_batch([b"x", b"y", b"z"])) == 3


@pytest.mark.parametrize(
    ("names", "digest"),
    [
        ([], "00000000"),
        (["persistent://public/default/t1"], "64d851d6"),
        (["topic://public/default/a"], "9c20e29b"),
        (["topic://public/default/b", "topic://public/default/a"], "ad97d07d"),
    ],
)
def test_topics_hash(names: list[str], digest: str) -> None:
    assert topics_hash(names) == digest


def test_merged_stats() -> None:
    one = {"n": 1, "rate": 0.5, "name": "a", "on": True, "list": [1], "subs": {"s": {"backlog": 2, "type": "Shared"}}}
    two = {
        "n": 2,
        "rate": 1.0,
        "name": "b",
        "on": False,
        "list": [2],
        "subs": {"s": {"backlog": 3}, "t": {"backlog": 1}},
    }
    before = repr(one)
    assert merged([one, two]) == {
        "n": 3,
        "rate": 1.5,
        "name": "a",
        "on": True,
        "list": [1, 2],
        "subs": {"s": {"backlog": 5, "type": "Shared"}, "t": {"backlog": 1}},
    }
    assert repr(one) == before
    assert merged([]) == {}
