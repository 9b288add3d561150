"""Chains of ledgers and the topic record."""

from __future__ import annotations

import pytest

from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain
from anabranch.storage.topic.topic_record import (
    BadTopicRecord,
    LedgerRow,
    TopicRecord,
    chain_of,
    decode_record,
    encode_record,
    with_chain,
)


def chain() -> LedgerChain:
    return LedgerChain(
        [
            ChainLedger(3, entries=4, messages=8, bytes=40, sealed=True),
            ChainLedger(7, entries=2, messages=20, bytes=60, sealed=True),
            ChainLedger(9, entries=1, messages=1, bytes=5),
        ],
        trimmed_messages=100,
    )


@pytest.mark.parametrize(
    ("p", "after", "at"),
    [
        (EARLIEST, (3, 0), (3, 0)),
        (Position(1, 5), (3, 0), (3, 0)),
        (Position(3, -1), (3, 0), (3, 0)),
        (Position(3, 0), (3, 1), (3, 0)),
        (Position(3, 3), (7, 0), (3, 3)),
        (Position(3, 4), (7, 0), (7, 0)),
        (Position(5, 0), (7, 0), (7, 0)),
        (Position(7, 1), (9, 0), (7, 1)),
        (Position(9, 0), (9, 1), (9, 0)),
        (Position(9, 1), (9, 2), (9, 1)),
        (Position(11, 0), (11, 1), (11, 0)),
    ],
)
def test_slots(p: Position, after: tuple[int, int], at: tuple[int, int]) -> None:
    assert chain().after(p) == after
    assert chain().at_or_after(p) == at


def test_latest_stays_latest() -> None:
    assert chain().at_or_after(LATEST) == LATEST


@pytest.mark.parametrize(
    ("p", "ordinal"),
    [
        (EARLIEST, 0),
        (Position(3, 0), 1),
        (Position(3, 9), 4),
        (Position(5, 0), 4),
        (Position(7, 1), 6),
        (Position(9, 0), 7),
        (LATEST, 7),
    ],
)
def test_ordinals(p: Position, ordinal: int) -> None:
    assert chain().ordinal(p) == ordinal


def test_sums_and_dropping() -> None:
    it = chain()
    assert (it.entries, it.messages, it.bytes, it.messages_ever, it.last) == (7, 29, 105, 129, Position(9, 0))
    assert [info.id for info in it.drop_head(1)] == [3]
    assert (it.entries, it.messages, it.trimmed_messages, it.messages_ever) == (3, 21, 108, 129)
    assert it.first() == Position(7, 0)
    assert it.messages_before_ledger(8) == 128


def test_last_position_outlives_its_ledger() -> None:
    it = LedgerChain([ChainLedger(3, entries=4, sealed=True)])
    it.drop_head(1)
    assert it.last == Position(3, 3)
    assert it.open(8).id == 8
    assert it.first() == Position(8, 0)


def test_ids_only_grow() -> None:
    it = LedgerChain([ChainLedger(3, entries=4, sealed=True)])
    with pytest.raises(AssertionError):
        it.open(3)


def test_record_round_trip() -> None:
    record = TopicRecord(
        epoch=4,
        ledgers=(LedgerRow(3, 4, 8, 40, 200, 1234, 1200), LedgerRow(9)),
        state_ledgers=(5, 10),
        garbage=(1,),
        trimmed_messages=100,
        last=Position(3, 3),
        terminated_at=Position(3, 3),
        properties={"clé": "valeur/ö"},
    )
    assert decode_record(encode_record(record)) == record
    assert decode_record(encode_record(TopicRecord(is_deleted=True))).is_deleted


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format":2}', b'{"format":1}'])
def test_unreadable_record_raises_bad_topic_record(data: bytes) -> None:
    with pytest.raises(BadTopicRecord):
        decode_record(data)


def test_record_follows_the_chain() -> None:
    record = with_chain(TopicRecord(epoch=2), chain(), next_ledger=12)
    assert [row.id for row in record.ledgers] == [3, 7, 9, 12]
    assert [row.entries for row in record.ledgers] == [4, 2, None, None]
    assert record.last == Position(7, 1)
    again = chain_of(TopicRecord(ledgers=record.ledgers[:2], trimmed_messages=record.trimmed_messages))
    assert (again.entries, again.messages_ever) == (6, 128)
