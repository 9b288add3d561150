"""How much one producer may have between "received" and "durable". Pure counting.

A window is granted as credits to clients that read them; for the others the broker holds what comes in excess, in
order, without touching its neighbours on the same connection.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Window:
    bytes_max: int
    messages_max: int
    bytes: int = 0
    messages: int = 0

    @property
    def is_open(self) -> bool:
        return self.bytes < self.bytes_max and self.messages < self.messages_max

    def take(self, size: int, messages: int) -> None:
        self.bytes += size
        self.messages += messages

    def give(self, size: int, messages: int) -> None:
        self.bytes -= size
        self.messages -= messages
        assert self.bytes >= 0
        assert self.messages >= 0
