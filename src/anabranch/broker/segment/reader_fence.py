"""Fencing of the consumers of an ordered subscription on a segment. Never awaits.

Every assignment of a subscription has a generation and gives the segment to one consumer. An attaching consumer sends
the generation of its assignment. The segment keeps the highest generation that it received, from its controller or
from a consumer, and refuses lower ones. So a consumer that was replaced while it was frozen is refused, however late it
comes back.

Clients of Pulsar cannot send a generation. They are admitted (one at a time, because they are exclusive) while the
segment has received none; after that only the consumer that the controller has named.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReaderFence:
    """Of one subscription on one segment; kept as long as the subscription's cursor there."""

    generation: int = 0  # lower ones are refused; 0: none was received
    holder: str = ""  # the member without generations that the controller has named

    def admits(self, name: str, segment_id: int, generation: int | None) -> bool:
        """`name`: of the consumer on the segment. `generation`: None for a client that cannot send one."""
        if generation is not None:
            return generation >= self.generation
        return self.generation == 0 or self.is_holder(name, segment_id)

    def is_holder(self, name: str, segment_id: int) -> bool:
        """Whether the controller has named this consumer."""
        return bool(self.holder) and name in names_of(self.holder, segment_id)

    def raise_to(self, generation: int, holder: str = "") -> bool:
        """Refuses lower generations from now on, and forgets a holder named under one. True: something changed."""
        before = self.generation, self.holder
        if generation > self.generation:
            self.generation, self.holder = generation, holder
        elif generation == self.generation and holder:
            self.holder = holder
        return before != (self.generation, self.holder)


def names_of(member: str, segment_id: int) -> tuple[str, str]:
    """Names that a member's consumers use on a segment (Pulsar's V5 client, and ours)."""
    return member, f"{member}-seg-{segment_id}"
