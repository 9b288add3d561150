"""Deliveries of one segment consumer that wait for a data key, with those behind them: their order never changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from anabranch.protocol.entry import Bytes


class KeyWait:
    """At most as many deliveries wait as the broker has permits for."""

    def __init__(
        self, prepare: Callable[[Bytes, Callable[[], None]], bool], deliver: Callable[[Any, Bytes], None]
    ) -> None:
        """`prepare` returns False while the data key of an entry is missing, and calls its second argument later."""
        self._prepare = prepare
        self._deliver = deliver
        self._waiting: deque[tuple[Any, Bytes]] = deque()
        self._turn = 0  # how often everything was dropped

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, body: Any, payload: Bytes) -> None:
        if self._waiting or not self._is_ready(payload):
            self._waiting.append((body, payload))
        else:
            self._deliver(body, payload)

    def clear(self) -> None:
        """Detached: the broker sends everything again."""
        self._waiting.clear()
        self._turn += 1

    def _is_ready(self, payload: Bytes) -> bool:
        return self._prepare(payload, partial(self._resume, self._turn))

    def _resume(self, turn: int) -> None:
        if turn != self._turn:
            return
        while self._waiting and self._is_ready(self._waiting[0][1]):
            self._deliver(*self._waiting.popleft())
