"""A ZooKeeper node as a record of the port: logical versions, times, intermediate nodes. Pure.

An intermediate node exists only as a parent of others: it has no data (None, not empty) and no session.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from anabranch.metadata.envelope import Envelope, Numbering, unwrap, wrap_raw, wrap_timed
from anabranch.metadata.interface import ABSENT, ANY, Expected, StoreIncompatible, Version, Versioned
from anabranch.zookeeper.jute import Node, Stat

RECORDS_MAX = 20_000
INTERMEDIATE_MAX = 100_000

CREATED_WITH_VALUE = -1
"""Creation time in an envelope that stands for "equal to the modification time"."""


def is_intermediate(node: Node) -> bool:
    return node.data is None and not node.stat.owner


def record_of(node: Node, numbering: Numbering) -> Versioned | None:
    """None for an intermediate node."""
    data, stat = node
    if data is None:
        if not stat.owner:
            return None
        data = b""  # written by another client; this store never writes it
    if (envelope := unwrap(data)) is None:
        version = stat.version + numbering.offset
        return Versioned(data, version, stat.created_ms, stat.modified_ms, stat.owner != 0)
    if envelope.version is None:
        version = stat.version + numbering.offset
        return Versioned(envelope.value, version, _created_ms(envelope, stat), stat.modified_ms, stat.owner != 0)
    return Versioned(envelope.value, envelope.version, envelope.created_ms, envelope.modified_ms, stat.owner != 0)


def _created_ms(envelope: Envelope | None, stat: Stat) -> int:
    created_ms = envelope.created_ms if envelope is not None else 0
    return created_ms if created_ms > 0 else stat.modified_ms if created_ms == CREATED_WITH_VALUE else stat.created_ms


def numbering_of(epoch: Node | None) -> Numbering:
    """From the record under `/.meta/epoch`."""
    if epoch is None or epoch.data is None:
        return Numbering()
    try:
        return Numbering.from_bytes(epoch.data)
    except ValueError as error:
        raise StoreIncompatible(f"the epoch record {epoch.data[:80]!r} cannot be read by this release") from error


def encode_record(value: bytes, old: Node | None, owner: int) -> bytes:
    """The bytes to store over `old`.

    The envelope keeps the creation time where the node's own differs: for a record that was moved in, a node that
    replaces another, and an intermediate node that becomes a record.
    """
    if old is None:
        return wrap_raw(value)
    is_new_node = old.stat.owner != owner
    if is_intermediate(old):
        return wrap_raw(value) if is_new_node else wrap_timed(value, CREATED_WITH_VALUE, 0)
    envelope = unwrap(old.data or b"")
    if is_new_node or (envelope is not None and envelope.created_ms):
        return wrap_timed(value, _created_ms(envelope, old.stat), 0)
    return wrap_raw(value)


def version_of(node: Node | None, numbering: Numbering) -> Version | None:
    """The logical version; None if the port shows no record."""
    record = record_of(node, numbering) if node is not None else None
    return record.version if record is not None else None


def rewrites_needed(stat: Stat, part_bytes: int, bytes_max: int, rewrites_max: int) -> int:
    """How often a node that replaces another is written so that its version exceeds the old one's.

    ZooKeeper cannot change whether a node is ephemeral, so such a put replaces the node, and the new one starts at
    version 0. Beyond `rewrites_max` very old versions may repeat; recent ones do not.
    """
    return max(1, min(stat.version + 1, rewrites_max, bytes_max // part_bytes))


class RecentRecord(NamedTuple):
    """A record without envelope as last seen: its next write needs no read first."""

    version: int
    owner: int


class RecentNodes:
    """Bounded cache of nodes seen lately. It saves reads; correctness does not depend on it."""

    def __init__(self) -> None:
        self._records: dict[str, RecentRecord] = {}
        self._intermediate: dict[str, None] = {}

    def note(self, path: str, data: bytes | None, stat: Stat) -> None:
        if data is None and not stat.owner:
            self.note_intermediate(path)
            return
        self._intermediate.pop(path, None)
        # version 0 is not cached: an intermediate node has it, and a node created again after a deletion
        if stat.version > 0 and data is not None and unwrap(data) is None:
            _put_bounded(self._records, path, RecentRecord(stat.version, stat.owner), RECORDS_MAX)
        else:
            self._records.pop(path, None)

    def note_intermediate(self, path: str) -> None:
        self._records.pop(path, None)
        _put_bounded(self._intermediate, path, None, INTERMEDIATE_MAX)

    def forget(self, path: str) -> None:
        self._records.pop(path, None)
        self._intermediate.pop(path, None)

    def is_intermediate(self, path: str) -> bool:
        return path in self._intermediate

    def version_for(self, path: str, expected: Expected, owner: int, numbering: Numbering) -> int | None:
        """The node version to write with; None if the node must be read first."""
        seen = self._records.get(path)
        if seen is None or seen.owner != owner or expected is ABSENT:
            return None
        if expected is ANY or expected == numbering.logical(seen.version):
            return seen.version
        return None


T = TypeVar("T")


def _put_bounded(items: dict[str, T], path: str, item: T, count_max: int) -> None:
    items.pop(path, None)
    items[path] = item
    if len(items) > count_max:
        del items[next(iter(items))]
