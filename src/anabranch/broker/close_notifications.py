"""What clients of a topic that moves away are told, once it can be found at its new place. Knows peers and frames.

Told earlier they would knock at a broker that does not serve them yet, and wait before they try again.
"""

from __future__ import annotations

from anabranch.broker.client_connection import Peer
from anabranch.broker.placement import Address
from anabranch.protocol import replies


class Farewell:
    def __init__(self, heir: Address | None) -> None:
        """Without an heir they are told to look for themselves."""
        self._url = None if heir is None else heir.service_url
        self._url_tls = None if heir is None else heir.service_url_tls
        self._unsaid: list[tuple[Peer, bytes]] = []

    def __len__(self) -> int:
        return len(self._unsaid)

    def producer(self, peer: Peer, producer_id: int) -> None:
        self._unsaid.append((peer, replies.close_producer(producer_id, url=self._url, url_tls=self._url_tls)))

    def consumer(self, peer: Peer, consumer_id: int) -> None:
        self._unsaid.append((peer, replies.close_consumer(consumer_id, url=self._url, url_tls=self._url_tls)))

    def say(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for peer, frame in unsaid:
            if peer.is_open:
                peer.send(frame)


def tell_producer(farewell: Farewell | None, peer: Peer, producer_id: int) -> None:
    """Now and to look for itself, or later and where to go."""
    if farewell is None:
        peer.send(replies.close_producer(producer_id))
    else:
        farewell.producer(peer, producer_id)


def tell_consumer(farewell: Farewell | None, peer: Peer, consumer_id: int) -> None:
    if farewell is None:
        peer.send(replies.close_consumer(consumer_id))
    else:
        farewell.consumer(peer, consumer_id)
