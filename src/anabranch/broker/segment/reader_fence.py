"""Which consumers of an ordered subscription a segment lets in: the fence behind every hand-over. A machine; no await.

Every assignment of a subscription has a generation, and a segment is given to one consumer in each. A consumer says the
generation of the assignment that gave it the segment when it attaches; the segment remembers the highest one that it
was told, by its controller or by whom it let in, and lets nobody in under a lower one. So a consumer that slept through
its own replacement is refused, however late it wakes up.

Clients of Pulsar cannot say a generation. Where no generation was ever said they are let in (one at a time: they are
exclusive); after that only the one whom the controller has named.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReaderFence:
    """For one subscription on one segment. Kept as long as the subscription's cursor there."""

    generation: int = 0  # lower ones are over; 0: none was ever said
    holder: str = ""  # the member without generations that has it, as the controller said

    def admits(self, name: str, segment_id: int, generation: int | None) -> bool:
        """`name`: the consumer's on the segment; `generation` None: its client has no word for it."""
        if generation is not None:
            return generation >= self.generation
        return self.generation == 0 or (bool(self.holder) and name in names_of(self.holder, segment_id))

    def raise_to(self, generation: int, holder: str = "") -> bool:
        """Lower ones are over, and whoever was named under a lower one is not any more. True: something changed."""
        before = self.generation, self.holder
        if generation > self.generation:
            self.generation, self.holder = generation, holder
        elif generation == self.generation and holder:
            self.holder = holder
        return before != (self.generation, self.holder)


def names_of(member: str, segment_id: int) -> tuple[str, str]:
    """What the consumers of a member are called on a segment (by Pulsar's V5 client, and by ours)."""
    return member, f"{member}-seg-{segment_id}"
