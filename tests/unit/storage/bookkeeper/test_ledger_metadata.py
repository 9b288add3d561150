"""Metadata of ledgers: encoding, paths, write sets."""

from __future__ import annotations

import pytest

from anabranch.storage.bookkeeper.bookkeeper_pb2 import LedgerValue
from anabranch.storage.bookkeeper.errors import BadMetadata
from anabranch.storage.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    Quorums,
    Segment,
    decode_ledger,
    encode_ledger,
    ledger_path,
    write_set,
)

OPEN = LedgerMetadata(Quorums(), (Segment(0, ("a:1", "b:1", "c:1")),), password=b"p", creator_token=5)


def test_metadata_returns_as_it_was_written() -> None:
    stored = encode_ledger(OPEN)
    assert stored.startswith(b"BookieMetadataFormatVersion\t3\n")
    assert decode_ledger(stored) == OPEN
    changed = decode_ledger(stored).with_ensemble(10, ("a:1", "d:1", "c:1"))
    again = decode_ledger(encode_ledger(changed))
    assert again == changed
    assert again.segments == (Segment(0, ("a:1", "b:1", "c:1")), Segment(10, ("a:1", "d:1", "c:1")))
    closed = decode_ledger(encode_ledger(again.closed(12, 340)))
    assert (closed.state, closed.last_entry, closed.length, closed.is_closed) == (LedgerState.CLOSED, 12, 340, True)
    assert decode_ledger(encode_ledger(OPEN.recovering())).state is LedgerState.IN_RECOVERY


def test_fields_of_other_clients_are_kept() -> None:
    value = LedgerValue(
        write_quorum=2,
        ensemble_size=2,
        ack_quorum=2,
        length=0,
        last_entry=-1,
        state=LedgerValue.OPEN,
        digest=LedgerValue.CRC32C,
        password=b"",
        created_ms=77,
        segment=[LedgerValue.Segment(member=["x", "y"], first_entry=0)],
        custom=[LedgerValue.Custom(key="application", value=b"pulsar")],
    )
    body = value.SerializeToString() + b"\xf8\x07\x2a"  # field 127, which this version does not know
    stored = b"BookieMetadataFormatVersion\t3\n" + bytes([len(body)]) + body
    written = encode_ledger(decode_ledger(stored).closed(3, 9))
    again = LedgerValue()
    again.ParseFromString(written[written.index(b"\n") + 2 :])
    assert (again.created_ms, again.custom[0].value, again.last_entry) == (77, b"pulsar", 3)
    assert again.SerializeToString().endswith(b"\xf8\x07\x2a")


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"BookieMetadataFormatVersion\t2\nlength: 0",
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t3\n\x05ab",
        b"BookieMetadataFormatVersion\t3\n\x02\xff\xff",
        b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\xff\xff",
        encode_ledger(OPEN)[:-1],
        encode_ledger(LedgerMetadata(Quorums(), (Segment(4, ("a", "b", "c")),))),
        encode_ledger(LedgerMetadata(Quorums(), (Segment(0, ("a", "b")),))),
    ],
)
def test_values_that_are_no_metadata_are_refused(stored: bytes) -> None:
    with pytest.raises(BadMetadata):
        decode_ledger(stored)


def test_a_change_at_the_first_entry_of_the_last_segment_replaces_it() -> None:
    first = OPEN.with_ensemble(0, ("a:1", "b:1", "d:1"))
    assert first.segments == (Segment(0, ("a:1", "b:1", "d:1")),)
    later = first.with_ensemble(5, ("x", "y", "z")).with_ensemble(5, ("x", "y", "w"))
    assert later.segments == (Segment(0, ("a:1", "b:1", "d:1")), Segment(5, ("x", "y", "w")))
    assert [later.segment_of(entry).first_entry for entry in (0, 4, 5, 1000)] == [0, 0, 5, 5]


def test_write_sets_go_round_the_ensemble() -> None:
    assert write_set("abcd", 0, 3) == ("a", "b", "c")
    assert write_set("abcd", 6, 3) == ("c", "d", "a")


def test_paths_of_short_and_long_ids() -> None:
    assert ledger_path(42) == "00/0000/L0042"
    assert ledger_path(1_234_567_890) == "12/3456/L7890"
    assert ledger_path(2**31 - 2) == "21/4748/L3646"
    assert ledger_path(2**31 - 1) == "000/0000/0021/4748/L3647"


@pytest.mark.parametrize("quorums", [(3, 3, 0), (3, 2, 3), (2, 3, 2)])
def test_quorums_that_cannot_work_are_refused(quorums: tuple[int, int, int]) -> None:
    with pytest.raises(BadMetadata):
        Quorums(*quorums)
