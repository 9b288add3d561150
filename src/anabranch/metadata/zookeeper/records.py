"""What a node means as a record of the port: logical versions, times, and nodes that only hold others. Pure."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from anabranch.metadata.envelope import Envelope, Numbering, unwrap, wrap_raw, wrap_timed
from anabranch.metadata.interface import ABSENT, ANY, Expected, StoreIncompatible, Version, Versioned
from anabranch.zookeeper.jute import Node, Stat

PLAIN_MAX = 20_000
HOLDERS_MAX = 100_000

BORN = -1
"""As time of creation in an envelope: the write that made this value created the record too."""


def is_holder(node: Node) -> bool:
    """Does it only exist because nodes below it need it? (An empty value is not the same as none.)"""
    return node.data is None and not node.stat.owner


def record_of(node: Node, numbering: Numbering) -> Versioned | None:
    """None for a node that only holds others."""
    data, stat = node
    if data is None:
        if not stat.owner:
            return None
        data = b""  # somebody else's: we never write it
    if (envelope := unwrap(data)) is None:
        version = stat.version + numbering.offset
        return Versioned(data, version, stat.created_ms, stat.modified_ms, stat.owner != 0)
    if envelope.version is None:
        version = stat.version + numbering.offset
        return Versioned(envelope.value, version, _created_ms(envelope, stat), stat.modified_ms, stat.owner != 0)
    return Versioned(envelope.value, envelope.version, envelope.created_ms, envelope.modified_ms, stat.owner != 0)


def _created_ms(envelope: Envelope | None, stat: Stat) -> int:
    created_ms = envelope.created_ms if envelope is not None else 0
    return created_ms if created_ms > 0 else stat.modified_ms if created_ms == BORN else stat.created_ms


def numbering_of(epoch: Node | None) -> Numbering:
    """From the record under `/.meta/epoch`."""
    if epoch is None or epoch.data is None:
        return Numbering()
    try:
        return Numbering.from_bytes(epoch.data)
    except ValueError as error:
        raise StoreIncompatible(f"the epoch record says {epoch.data[:80]!r}, which this release cannot read") from error


def dressed(value: bytes, old: Node | None, owner: int) -> bytes:
    """The bytes to store over `old`. A time of creation that the node itself does not have goes into the envelope: of a
    record that was moved in, of a node that takes the place of another, or of a holder that becomes a record."""
    if old is None:
        return wrap_raw(value)
    is_new_node = old.stat.owner != owner
    if is_holder(old):
        return wrap_raw(value) if is_new_node else wrap_timed(value, BORN, 0)
    envelope = unwrap(old.data or b"")
    if is_new_node or (envelope is not None and envelope.created_ms):
        return wrap_timed(value, _created_ms(envelope, old.stat), 0)
    return wrap_raw(value)


def version_of(node: Node | None, numbering: Numbering) -> Version | None:
    """The logical version; None where the port sees nothing."""
    record = record_of(node, numbering) if node is not None else None
    return record.version if record is not None else None


def lifts(stat: Stat, part_bytes: int, bytes_max: int, lifts_max: int) -> int:
    """How often a node that replaces another is written so that its version is above the old one's.

    ZooKeeper can make a node neither ephemeral nor persistent afterwards, so such a put replaces it, and the new one
    counts from 0. Past `lifts_max` the numbers of long ago may come again; the recent ones are still far.
    """
    return max(1, min(stat.version + 1, lifts_max, bytes_max // part_bytes))


class Seen(NamedTuple):
    """A record without envelope, as last seen: its next write need not read it first."""

    version: int
    owner: int


class Known:
    """What was seen lately: it saves questions, no answer rests on it. Bounded."""

    def __init__(self) -> None:
        self._plain: dict[str, Seen] = {}
        self._holders: dict[str, None] = {}

    def saw(self, path: str, data: bytes | None, stat: Stat) -> None:
        if data is None and not stat.owner:
            self.saw_holder(path)
            return
        self._holders.pop(path, None)
        # 0 is also the number of a holder, and the first one after a deletion: never trusted
        if stat.version > 0 and data is not None and unwrap(data) is None:
            _keep(self._plain, path, Seen(stat.version, stat.owner), PLAIN_MAX)
        else:
            self._plain.pop(path, None)

    def saw_holder(self, path: str) -> None:
        self._plain.pop(path, None)
        _keep(self._holders, path, None, HOLDERS_MAX)

    def forget(self, path: str) -> None:
        self._plain.pop(path, None)
        self._holders.pop(path, None)

    def is_holder(self, path: str) -> bool:
        return path in self._holders

    def version_for(self, path: str, expected: Expected, owner: int, numbering: Numbering) -> int | None:
        """The number a write can be sent with at once, or None: read first."""
        seen = self._plain.get(path)
        if seen is None or seen.owner != owner or expected is ABSENT:
            return None
        if expected is ANY or expected == numbering.logical(seen.version):
            return seen.version
        return None


T = TypeVar("T")


def _keep(kept: dict[str, T], path: str, what: T, count_max: int) -> None:
    kept.pop(path, None)
    kept[path] = what
    if len(kept) > count_max:
        del kept[next(iter(kept))]
