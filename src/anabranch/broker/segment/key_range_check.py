"""Checks on a producer's first keyed entries that it routes keys as the topic does. Pure.

The routing function is not part of the wire protocol. A client that hashes differently would write keys to segments
where their readers do not look, and would lose their order. The check reads the outer metadata only; the outer key of
a batch is the key of its first message.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.model.hashrange import HashRange
from anabranch.model.routing import RingHash
from anabranch.protocol import entry
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.keyhash import murmur3_32
from anabranch.storage.interface import Payload

PROOFS = 8  # keyed entries in range; a wrong hash passes with probability 2^-8 on half of the ring
LOOKS = 64  # entries that are checked at most, keyed or not


@dataclass(slots=True)
class KeyRangeCheck:
    """The check of one producer on one segment."""

    span: HashRange
    ring_hash: RingHash
    proofs: int = 0
    looks: int = 0
    complaint: str = ""  # permanent once set

    @property
    def is_done(self) -> bool:
        """Whether no further entry needs a check."""
        return not self.complaint and (self.proofs >= PROOFS or self.looks >= LOOKS)

    def check(self, payload: Payload) -> str:
        """The reason to refuse the entry, or an empty string."""
        if self.complaint:
            return self.complaint
        self.looks += 1
        try:
            of = entry.metadata(payload)
        except ProtocolError:
            return ""  # unreadable for the broker: left to the consumers
        if not of.HasField("partition_key") or of.partition_key_b64_encoded or of.null_partition_key:
            return ""
        position = self.ring_hash.ring_position(murmur3_32(of.partition_key.encode()))
        if position in self.span:
            self.proofs += 1
        else:
            self.complaint = (
                f"key {of.partition_key[:64]!r} has ring position {position:04x} by {self.ring_hash.value}, which is "
                f"not in this segment ({self.span}): the producer routes keys by another function"
            )
        return self.complaint
