"""Close notifications for the clients of a topic that is being moved.

They are sent after the new owner serves the topic. Sent earlier, clients would reconnect to a broker that still refuses
them, and back off.
"""

from __future__ import annotations

from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.placement import Address
from anabranch.protocol import replies


class CloseNotifications:
    def __init__(self, new_owner: Address | None) -> None:
        """`new_owner` None: the frames name no broker, and clients do a lookup. So they do if the broker has advertised
        listeners, because it is not known here by which of them a client came."""
        if new_owner is not None and new_owner.listeners:
            new_owner = None
        self._url = None if new_owner is None else new_owner.service_url
        self._url_tls = None if new_owner is None else new_owner.service_url_tls
        self._frames: list[tuple[ClientConnection, bytes]] = []

    def __len__(self) -> int:
        return len(self._frames)

    def producer(self, peer: ClientConnection, producer_id: int) -> None:
        self._frames.append((peer, replies.close_producer(producer_id, url=self._url, url_tls=self._url_tls)))

    def consumer(self, peer: ClientConnection, consumer_id: int) -> None:
        self._frames.append((peer, replies.close_consumer(consumer_id, url=self._url, url_tls=self._url_tls)))

    def send(self) -> None:
        frames, self._frames = self._frames, []
        for peer, frame in frames:
            if peer.is_open:
                peer.send(frame)


def notify_producer_closed(notifications: CloseNotifications | None, peer: ClientConnection, producer_id: int) -> None:
    """Send at once without an address, or queue with the new owner's address."""
    if notifications is None:
        peer.send(replies.close_producer(producer_id))
    else:
        notifications.producer(peer, producer_id)


def notify_consumer_closed(notifications: CloseNotifications | None, peer: ClientConnection, consumer_id: int) -> None:
    if notifications is None:
        peer.send(replies.close_consumer(consumer_id))
    else:
        notifications.consumer(peer, consumer_id)
