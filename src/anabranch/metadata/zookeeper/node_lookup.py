"""Looks at nodes for `Changes`, on the same channel that brings the events, so that a look is never behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.zookeeper.change_events import GONE, Seen
from anabranch.metadata.zookeeper.records import is_holder
from anabranch.runtime.clock import Clock
from anabranch.zookeeper import jute
from anabranch.zookeeper.channel import Answer, AnswerLate, Channel
from anabranch.zookeeper.jute import Code, Request, ServerError

KEY = Seen(exists=True, is_holder=False)
HOLDER = Seen(exists=True, is_holder=True)


class Looking:
    def __init__(self, clock: Clock, request_s: float) -> None:
        self._clock = clock
        self._request_s = request_s
        self._channel: Channel | None = None

    def use(self, channel: Channel) -> bool:
        """From now on; was there another before? Looks at that one are never answered."""
        had_one = self._channel is not None
        self._channel = channel
        return had_one

    def look(self, path: str, answer: Callable[[Seen], None]) -> None:
        """Is it a key? Its length says so, unless that is 0."""

        def looked(found: Answer) -> None:
            stat = jute.stat_of(found.body)
            if stat.data_length or stat.owner:
                answer(KEY)
            else:
                self._ask(jute.get_data(path), read, answer)

        def read(found: Answer) -> None:
            answer(HOLDER if is_holder(jute.node_of(found.body)) else KEY)

        self._ask(jute.exists(path), looked, answer)

    def _ask(self, request: Request, then: Callable[[Answer], None], answer: Callable[[Seen], None]) -> None:
        channel = self._channel
        assert channel is not None

        def done(future: asyncio.Future[Answer]) -> None:
            if self._channel is not channel or future.cancelled():
                return
            error = future.exception()
            if error is None:
                then(future.result())
            elif isinstance(error, ServerError) and error.number == Code.NO_NODE:
                answer(GONE)
            elif isinstance(error, AnswerLate | ServerError):
                answer(KEY)  # a hint too many does no harm
            # else the channel is lost: everybody is told so when the next one stands

        try:
            channel.send(request, self._clock.monotonic() + self._request_s).add_done_callback(done)
        except StoreUnavailable:
            return  # lost, as above
