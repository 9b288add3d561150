"""Does a producer route as the topic does? Its first keyed entries tell. Pure; looks at the outer metadata only.

The routing function is not on the wire, so a client that hashes differently would scatter keys over segments where
nobody looks for them, and their order would be gone. The outer key of a batch is that of its first message: enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.model.hashrange import HashRange
from anabranch.model.routing import RingHash
from anabranch.protocol import entry
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.keyhash import murmur3_32
from anabranch.storage.interface import Payload

PROOFS = 8  # keyed entries that fit: by chance a stranger has them with 1 in 2^8 on half of the ring
LOOKS = 64  # at so many entries at most, keyed or not


@dataclass(slots=True)
class KeyRangeCheck:
    """Of one producer on one segment."""

    span: HashRange
    ring_hash: RingHash
    proofs: int = 0
    looks: int = 0
    complaint: str = ""  # once there is one, it stays

    @property
    def is_done(self) -> bool:
        """Nothing more needs to be looked at."""
        return not self.complaint and (self.proofs >= PROOFS or self.looks >= LOOKS)

    def check(self, payload: Payload) -> str:
        """What is wrong with it, or nothing."""
        if self.complaint:
            return self.complaint
        self.looks += 1
        try:
            of = entry.metadata(payload)
        except ProtocolError:
            return ""  # its consumers will find out
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
