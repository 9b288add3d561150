"""Port to a client's connection, as producers, consumers and topics use it."""

from __future__ import annotations

from typing import Protocol

from anabranch.runtime.net import Buffer


class ClientConnection(Protocol):
    address: str
    client_version: str
    protocol_version: int
    knows_end_of_topic: bool  # no released C++ client does: it drops the connection
    is_open: bool

    @property
    def has_room(self) -> bool:
        """False while too many bytes wait in the socket queue: dispatch pauses."""

    def send(self, *buffers: Buffer) -> None:
        """Queue for the end of this loop step; never blocks."""

    def send_run(self, buffers: list[Buffer], size: int) -> None:
        """`send` of many buffers with `size` bytes in total."""

    async def is_alive(self) -> bool:
        """Send PING and wait for an answer, with a deadline. A silent connection is closed."""

    def add_pending_bytes(self, size: int) -> None:
        """Add `size` (may be negative) to the bytes received for producers and not durable yet."""

    def producer_closed(self, producer_id: int) -> None:
        """The broker closed this producer: forget it, and ignore its SENDs for a while."""

    def consumer_closed(self, consumer_id: int) -> None:
        """The broker closed this consumer: forget it."""
