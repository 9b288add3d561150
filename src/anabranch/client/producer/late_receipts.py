"""What a broker says to a producer that it has closed. Knows the entries that had no receipt then; decides nothing.

Brokers close the producers of a topic that they seal or give away, and some say only afterwards what they had stored
until then: Apache Pulsar 5.0.0-M1 under load, a tenth of a second later. Sent again, it would be stored twice.
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

ECHO_SECONDS = 5.0
"""How long it is listened for when its lane is over: as long as its messages may wait for other lanes to open."""


@dataclass(frozen=True, slots=True)
class Late:
    """A receipt, and what it is for."""

    entry: Entry
    ledger: int
    position: int


class LateReceipts:
    """Listens from the start; receipts of one turn of the loop are told together."""

    def __init__(
        self, connection: Connection, producer_id: int, entries: Iterable[Entry], told: Callable[[list[Late]], None]
    ) -> None:
        self._connection = connection
        self._id = producer_id
        self._entries = deque(entries)
        self._told = told
        self._late: list[Late] = []
        self._is_closed = False
        connection.listen_producer(producer_id, self)

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind != BaseCommand.SEND_RECEIPT or not self._entries or self._entries[0].first != body.sequence_id:
            return
        if not self._late:
            asyncio.get_running_loop().call_soon(self._tell)
        identity = body.message_id
        self._late.append(Late(self._entries.popleft(), signed(identity.ledgerId), signed(identity.entryId)))

    def on_detached(self, error: ClientError) -> None:
        """Then nothing more comes."""

    def _tell(self) -> None:
        late, self._late = self._late, []
        if not self._is_closed:
            self._told(late)

    def close(self) -> None:
        self._is_closed = True
        self._connection.unlisten(self._id)


class Echoes:
    """Of lanes that are over, each for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[LateReceipts, Timer] = {}

    def keep(self, echo: LateReceipts) -> None:
        self._kept[echo] = self._clock.call_later(ECHO_SECONDS, partial(self._let_go, echo))

    def _let_go(self, echo: LateReceipts) -> None:
        self._kept.pop(echo).cancel()
        echo.close()

    def close(self) -> None:
        for echo in list(self._kept):
            self._let_go(echo)
