"""Receipts that arrive after the broker closed a producer.

Brokers close the producers of a topic that they seal or unload. Some send receipts for entries stored before that only
afterwards: Apache Pulsar 5.0.0-M1 under load, a tenth of a second later. Sent again, such an entry is stored twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from anabranch.client.connection.connection import Connection
from anabranch.client.errors import ClientError
from anabranch.client.messages.outgoing import Entry
from anabranch.protocol.commands import BaseCommand, signed
from anabranch.protocol.entry import Bytes
from anabranch.runtime.clock import Clock, Timer

LISTEN_SECONDS = 5.0
"""How long a listener outlives its lane: as long as its messages may wait for other lanes to open."""


@dataclass(frozen=True, slots=True)
class LateReceipt:
    """A receipt and its entry."""

    entry: Entry
    ledger: int
    position: int


class LateReceiptListener:
    """Listens for the receipts of one closed producer; reports the receipts of one event loop iteration together."""

    def __init__(
        self,
        connection: Connection,
        producer_id: int,
        entries: Iterable[Entry],
        report: Callable[[list[LateReceipt]], None],
    ) -> None:
        self._connection = connection
        self._id = producer_id
        self._entries = deque(entries)
        self._report = report
        self._late: list[LateReceipt] = []
        self._is_closed = False
        connection.listen_producer(producer_id, self)

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind != BaseCommand.SEND_RECEIPT or not self._entries or self._entries[0].first != body.sequence_id:
            return
        if not self._late:
            asyncio.get_running_loop().call_soon(self._report_all)
        identity = body.message_id
        self._late.append(LateReceipt(self._entries.popleft(), signed(identity.ledgerId), signed(identity.entryId)))

    def on_detached(self, error: ClientError) -> None:
        """No more receipts can arrive."""

    def _report_all(self) -> None:
        late, self._late = self._late, []
        if not self._is_closed:
            self._report(late)

    def close(self) -> None:
        self._is_closed = True
        self._connection.unlisten(self._id)


class LateReceiptListeners:
    """Listeners of dropped lanes. Each is closed after `LISTEN_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[LateReceiptListener, Timer] = {}

    def keep(self, listener: LateReceiptListener) -> None:
        self._kept[listener] = self._clock.call_later(LISTEN_SECONDS, partial(self._stop, listener))

    def _stop(self, listener: LateReceiptListener) -> None:
        self._kept.pop(listener).cancel()
        listener.close()

    def close(self) -> None:
        for listener in list(self._kept):
            self._stop(listener)
