"""How much a broker still takes from one producer before it must store something. Counting only.

Brokers that announce `anabranch_extensions` grant a window when a producer is opened and give room back with every
receipt. As on the broker's side an entry may go out while there is any room at all, so a large one can overdraw it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Credits:
    bytes: int
    messages: int

    @property
    def is_open(self) -> bool:
        return self.bytes > 0 and self.messages > 0

    def take(self, size: int, messages: int) -> None:
        self.bytes -= size
        self.messages -= messages

    def give(self, size: int, messages: int) -> None:
        self.bytes += size
        self.messages += messages
