"""The deduplication table of one topic: highest sequence id per producer name. Pure: no await, no clock.

There are two marks per producer name: *pushed* (handed to the log) and *persisted*.

* An entry covers the sequence ids up to the highest that its client sends. The C++ client does not send it for a batch,
  and it cannot be derived from the number of messages, because key-based batches interleave (0, 2, 3 in one batch, 1 in
  the next). Such a batch counts by its first id alone, as in Pulsar; clients resend batches unchanged.
* An entry may carry a *note* (`producer_note` in the metadata): opaque bytes of its producer, such as a checksum of
  what it has sent so far. The note of the last persisted entry is kept with its sequence id.
* Chunks of one message share a sequence id. Only the last chunk moves the marks, so a partly sent message can be sent
  again from its start.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from anabranch.model.position import EARLIEST, Position

NAMES_MAX = 10_000
STATE = "dedup"  # name of the state blob of the topic


class Last(NamedTuple):
    """Last persisted state of a producer name."""

    sequence: int = -1  # highest persisted sequence id
    note: bytes = b""  # note of that entry


class DedupDecision(Enum):
    NEW = "new"
    DUPLICATE = "duplicate"  # already persisted
    IN_FLIGHT = "in flight"  # pushed, outcome unknown


@dataclass(slots=True)
class Sequences:
    """Highest sequence id per producer name."""

    pushed: dict[str, int] = field(default_factory=dict)
    persisted: dict[str, int] = field(default_factory=dict)
    notes: dict[str, bytes] = field(default_factory=dict)  # of producers that send notes

    def check(self, name: str, sequence: int) -> DedupDecision:
        if sequence <= self.persisted.get(name, -1):
            return DedupDecision.DUPLICATE
        if sequence <= self.pushed.get(name, -1):
            return DedupDecision.IN_FLIGHT
        return DedupDecision.NEW

    def push(self, name: str, highest: int) -> None:
        if highest > self.pushed.get(name, -1):
            self.pushed[name] = highest

    def persist(self, name: str, highest: int, note: bytes = b"") -> None:
        self.push(name, highest)
        if highest > self.persisted.get(name, -1):
            if note:
                self.notes[name] = note
            elif name in self.notes:
                del self.notes[name]
            # Re-inserting keeps the dict in order of last use: the oldest names are dropped first.
            self.persisted.pop(name, None)
            self.persisted[name] = highest
            if len(self.persisted) > NAMES_MAX:
                oldest = next(iter(self.persisted))
                del self.persisted[oldest]
                self.pushed.pop(oldest, None)
                self.notes.pop(oldest, None)

    def forget_pushed(self, name: str) -> None:
        """After a failed append: ids that were pushed but not persisted count as new again."""
        if name in self.persisted:
            self.pushed[name] = self.persisted[name]
        else:
            self.pushed.pop(name, None)

    def last(self, name: str) -> int:
        return self.persisted.get(name, -1)

    def last_of(self, name: str) -> Last:
        return Last(self.last(name), self.notes.get(name, b""))

    def dump(self, upto: Position) -> bytes:
        made: dict[str, object] = {"upto": list(upto), "sequences": self.persisted}
        if self.notes:
            made["notes"] = {name: b64encode(note).decode() for name, note in self.notes.items()}
        return json.dumps(made, separators=(",", ":")).encode()

    @classmethod
    def load(cls, blob: bytes | None) -> tuple[Sequences, Position]:
        """The snapshot and the position up to which it is complete."""
        if not blob:
            return cls(), EARLIEST
        found = json.loads(blob)
        sequences = {str(name): int(last) for name, last in found["sequences"].items()}
        notes = {str(name): b64decode(note) for name, note in found.get("notes", {}).items()}
        return cls(dict(sequences), dict(sequences), notes), Position(*found["upto"])


def highest_of(sequence: int, highest: int) -> int:
    """Last sequence id that an entry certainly covers, from SEND or the entry's metadata."""
    return highest if highest > max(sequence, 0) else sequence  # 0 means "not given"
