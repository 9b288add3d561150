"""What producers, consumers and topics may know of the connection they live on."""

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
        """May dispatch hand over more, or do too many bytes wait in the socket queue already?"""

    def send(self, *buffers: Buffer) -> None:
        """Queue for the end of this loop step; never blocks."""

    def send_run(self, buffers: list[Buffer], size: int) -> None:
        """`send` of many, which have `size` bytes together."""

    async def is_alive(self) -> bool:
        """Ask by PING, with a deadline; a silent peer is closed on the way."""

    def add_pending_bytes(self, size: int) -> None:
        """Bytes received for this connection's producers that are not durable yet changed by `size`."""

    def producer_closed(self, producer_id: int) -> None:
        """The broker closed this producer: forget it, and ignore what its client still sends for a while."""

    def consumer_closed(self, consumer_id: int) -> None:
        """The broker closed this consumer: forget it."""
