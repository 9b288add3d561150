"""One record in one etcd key: value, version and times; and a cache of records seen lately.

etcd has no times, so every value is enveloped with them (`envelope.py`). Versions are etcd's mod revisions plus the
store's offset, which is in the epoch record. Every write compares the epoch record too, so that a writer with an old
offset is refused and reads the new one. A reader may show versions with the old offset until its store writes or syncs;
a compare-and-set with such a version is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from anabranch.metadata.envelope import Numbering, unwrap
from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd.channel import RANGE, EtcdChannel
from anabranch.metadata.etcd.keys import Keyspace
from anabranch.metadata.interface import StoreIncompatible, Version, Versioned

RECENT_MAX = 4096


@dataclass(frozen=True, slots=True)
class RecentRecord:
    """What a later compare-and-set needs: the logical version, etcd's revision, and the creation time."""

    version: Version
    native: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """The numbering, and the revision at which it was written (0: never)."""

    numbering: Numbering
    native: int


class RecentRecords:
    """Bounded cache of the records seen last. An outdated entry costs a round trip, nothing more."""

    def __init__(self, count_max: int = RECENT_MAX) -> None:
        self._count_max = count_max
        self._records: OrderedDict[str, RecentRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> RecentRecord | None:
        found = self._records.get(key)
        if found is not None:
            self._records.move_to_end(key)
        return found

    def put(self, key: str, seen: RecentRecord | None) -> None:
        if seen is None:
            self._records.pop(key, None)
            return
        self._records[key] = seen
        self._records.move_to_end(key)
        if len(self._records) > self._count_max:
            self._records.popitem(last=False)

    def clear(self) -> None:
        self._records.clear()


class EtcdRecords:
    def __init__(self, channel: EtcdChannel, keyspace: Keyspace) -> None:
        self._channel = channel
        self.keyspace = keyspace
        self.recent = RecentRecords()
        self.epoch = Epoch(Numbering(), 0)

    def versioned(self, kv: pb.KeyValue) -> Versioned:
        return versioned(kv, self.epoch.numbering)

    def note(self, key: str, kv: pb.KeyValue | None) -> RecentRecord | None:
        """Cache a record that was read."""
        seen = None
        if kv is not None:
            found = self.versioned(kv)
            seen = RecentRecord(found.version, kv.mod_revision, found.created_ms)
        self.recent.put(key, seen)
        return seen

    def note_epoch(self, kv: pb.KeyValue | None) -> None:
        native = 0 if kv is None else kv.mod_revision
        if native != self.epoch.native:
            self.recent.clear()  # its versions have the old offset
            self.epoch = Epoch(Numbering() if kv is None else numbering_of(kv), native)

    async def load_epoch(self) -> None:
        self.note_epoch(await self._one(self.keyspace.epoch))

    async def read(self, key: str) -> Versioned | None:
        kv = await self._one(self.keyspace.key(key))
        self.note(key, kv)
        return None if kv is None else self.versioned(kv)

    async def read_recent(self, key: str, end: float) -> RecentRecord | None:
        return self.note(key, await self._one(self.keyspace.key(key), end))

    async def _one(self, key: bytes, end: float | None = None) -> pb.KeyValue | None:
        response = await self._channel.repeat(RANGE, pb.RangeRequest(key=key), end=end)
        return response.kvs[0] if response.kvs else None


def versioned(kv: pb.KeyValue, numbering: Numbering) -> Versioned:
    stored, ephemeral = kv.value, kv.lease != 0
    envelope = unwrap(stored)
    if envelope is None:  # written by another program: no times
        return Versioned(stored, numbering.logical(kv.mod_revision), 0, 0, ephemeral)
    value, version, created_ms, modified_ms = envelope
    if version is None:
        version = numbering.logical(kv.mod_revision)
    return Versioned(value, version, created_ms, modified_ms, ephemeral)


def numbering_of(kv: pb.KeyValue) -> Numbering:
    stored = versioned(kv, Numbering()).value
    if not stored:
        return Numbering()
    try:
        return Numbering.from_bytes(stored)
    except ValueError as error:
        raise StoreIncompatible(f"the epoch record {stored[:80]!r} cannot be read by this release") from error
