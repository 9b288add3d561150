"""What clients of a topic that moves away are told, once it can be found at its new place. Knows peers and frames.

Told earlier they would knock at a broker that does not serve them yet, and wait before they try again.
"""

from __future__ import annotations

from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.placement import Address
from anabranch.protocol import replies


class CloseNotifications:
    def __init__(self, heir: Address | None) -> None:
        """Without an heir they are told to look for themselves."""
        self._url = None if heir is None else heir.service_url
        self._url_tls = None if heir is None else heir.service_url_tls
        self._unsaid: list[tuple[ClientConnection, bytes]] = []

    def __len__(self) -> int:
        return len(self._unsaid)

    def producer(self, peer: ClientConnection, producer_id: int) -> None:
        self._unsaid.append((peer, replies.close_producer(producer_id, url=self._url, url_tls=self._url_tls)))

    def consumer(self, peer: ClientConnection, consumer_id: int) -> None:
        self._unsaid.append((peer, replies.close_consumer(consumer_id, url=self._url, url_tls=self._url_tls)))

    def say(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for peer, frame in unsaid:
            if peer.is_open:
                peer.send(frame)


def tell_producer(farewell: CloseNotifications | None, peer: ClientConnection, producer_id: int) -> None:
    """Now and to look for itself, or later and where to go."""
    if farewell is None:
        peer.send(replies.close_producer(producer_id))
    else:
        farewell.producer(peer, producer_id)


def tell_consumer(farewell: CloseNotifications | None, peer: ClientConnection, consumer_id: int) -> None:
    if farewell is None:
        peer.send(replies.close_consumer(consumer_id))
    else:
        farewell.consumer(peer, consumer_id)
