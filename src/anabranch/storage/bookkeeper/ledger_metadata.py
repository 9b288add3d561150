"""Metadata of a BookKeeper ledger: a frozen value, its encoding (format 3), and where it is stored.

A ledger has segments. Each names the bookies (the *ensemble*) of the entries from its first entry on. The state goes
OPEN → IN_RECOVERY → CLOSED, or OPEN → CLOSED. A closed ledger has a last entry, and never changes again, except that
BookKeeper's autorecovery may replace lost bookies in its segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from google.protobuf.message import DecodeError

from anabranch.storage.bookkeeper.bookkeeper_pb2 import LedgerValue
from anabranch.storage.bookkeeper.errors import BadMetadata

_HEADER = b"BookieMetadataFormatVersion\t3\n"
_SHORT_ID_MAX = 2**31 - 1
NO_ENTRY = -1
_OWNER = "anabranch/cluster"
"""Custom metadata of our ledgers. BookKeeper's programs keep and show it."""


class LedgerState(IntEnum):
    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


_STATES = {
    LedgerState.OPEN: LedgerValue.OPEN,
    LedgerState.IN_RECOVERY: LedgerValue.IN_RECOVERY,
    LedgerState.CLOSED: LedgerValue.CLOSED,
}


@dataclass(frozen=True, slots=True)
class Quorums:
    """The write quorum is the ensemble: all replicas have all entries, so that each can serve batch reads."""

    ensemble: int = 3
    write: int = 3
    ack: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.ack <= self.write <= self.ensemble:
            raise BadMetadata(f"quorums must obey 1 <= ack <= write <= ensemble: {self}")


@dataclass(frozen=True, slots=True)
class Segment:
    first_entry: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    quorums: Quorums
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = NO_ENTRY  # of a closed ledger
    length: int = 0  # payload bytes of a closed ledger
    password: bytes = b""
    owner: str = ""  # id of the Anabranch cluster that created it; empty for ledgers of other programs
    creator_token: int = field(default=0, compare=False)  # Java's client drops it at its first update
    raw: bytes = field(default=b"", repr=False, compare=False)  # as read; keeps what this version does not know

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def segment_of(self, entry: int) -> Segment:
        """The segment of an entry, which need not have been written."""
        found = self.segments[0]
        for segment in self.segments:
            if segment.first_entry > entry:
                break
            found = segment
        return found

    def with_ensemble(self, first_entry: int, ensemble: Sequence[str]) -> LedgerMetadata:
        """Entries from `first_entry` on go to these bookies. Earlier segments stay as they are."""
        last = self.segments[-1]
        assert first_entry >= last.first_entry
        kept = self.segments[:-1] if last.first_entry == first_entry else self.segments
        return replace(self, segments=(*kept, Segment(first_entry, tuple(ensemble))))

    def recovering(self) -> LedgerMetadata:
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry: int, length: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)


def write_set(ensemble: Sequence[str], entry: int, write_quorum: int) -> tuple[str, ...]:
    """The bookies that store this entry."""
    size = len(ensemble)
    return tuple(ensemble[(entry + at) % size] for at in range(write_quorum))


def encode_ledger(metadata: LedgerMetadata) -> bytes:
    value = LedgerValue()
    if metadata.raw:
        value.ParseFromString(metadata.raw)
    else:
        value.digest = LedgerValue.CRC32C
        value.password = metadata.password
        value.creator_token = metadata.creator_token
        value.custom.add(key="application", value=b"anabranch")
        if metadata.owner:
            value.custom.add(key=_OWNER, value=metadata.owner.encode())
    value.write_quorum = metadata.quorums.write
    value.ensemble_size = metadata.quorums.ensemble
    value.ack_quorum = metadata.quorums.ack
    value.state = _STATES[metadata.state]
    value.length = metadata.length
    value.last_entry = metadata.last_entry
    del value.segment[:]
    for segment in metadata.segments:
        value.segment.add(member=segment.ensemble, first_entry=segment.first_entry)
    body = value.SerializeToString()
    return _HEADER + _varint(len(body)) + body


def decode_ledger(stored: bytes) -> LedgerMetadata:
    if not stored.startswith(_HEADER):
        raise BadMetadata(f"ledger metadata is not of format 3: {stored[:40]!r}")
    size, at = _read_varint(stored, len(_HEADER))
    body = stored[at : at + size]
    value = LedgerValue()
    try:
        value.ParseFromString(body)
    except DecodeError as error:
        raise BadMetadata(f"ledger metadata cannot be decoded: {error}") from error
    if len(body) != size or not value.segment:
        raise BadMetadata("ledger metadata is cut, or names no bookies")
    if value.digest != LedgerValue.CRC32C:
        raise BadMetadata(f"ledgers with digest {LedgerValue.Digest.Name(value.digest)} cannot be read")
    quorums = Quorums(value.ensemble_size, value.write_quorum, value.ack_quorum or value.write_quorum)
    segments = tuple(Segment(one.first_entry, tuple(one.member)) for one in value.segment)
    firsts = [one.first_entry for one in segments]
    if firsts[0] != 0 or firsts != sorted(set(firsts)) or any(len(s.ensemble) != quorums.ensemble for s in segments):
        raise BadMetadata(f"segments of a ledger must begin at 0, ascend and name {quorums.ensemble} bookies each")
    return LedgerMetadata(
        quorums,
        segments,
        LedgerState(value.state),
        value.last_entry if value.HasField("last_entry") else NO_ENTRY,
        value.length,
        value.password,
        next((one.value.decode(errors="replace") for one in value.custom if one.key == _OWNER), ""),
        value.creator_token,
        body,
    )


def ledger_path(ledger: int) -> str:
    """Path of a ledger's node below BookKeeper's root, in the layout `HierarchicalLedgerManager`."""
    assert ledger >= 0
    if ledger < _SHORT_ID_MAX:
        digits = f"{ledger:010d}"
        return f"{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger:019d}"
    return f"{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(raw) and shift <= 28:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise BadMetadata("ledger metadata ends within its length")
