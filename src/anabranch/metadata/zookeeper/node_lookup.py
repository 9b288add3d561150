"""Reads nodes for `ChangeEvents` on the channel that delivers the events, so that no answer is older than them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.metadata.zookeeper.change_events import MISSING, NodeState
from anabranch.metadata.zookeeper.records import is_intermediate
from anabranch.runtime.clock import Clock
from anabranch.zookeeper import jute
from anabranch.zookeeper.channel import Answer, Channel
from anabranch.zookeeper.errors import AnswerTimeout, Code, ServerError, ZooKeeperError
from anabranch.zookeeper.jute import Request

KEY = NodeState(exists=True, is_intermediate=False)
INTERMEDIATE = NodeState(exists=True, is_intermediate=True)


class NodeLookup:
    def __init__(self, clock: Clock, request_s: float) -> None:
        self._clock = clock
        self._request_s = request_s
        self._channel: Channel | None = None

    def use(self, channel: Channel) -> bool:
        """Read on `channel` from now on. True if there was one before, whose reads are never answered."""
        had_one = self._channel is not None
        self._channel = channel
        return had_one

    def look_up(self, path: str, answer: Callable[[NodeState], None]) -> None:
        """A node with data is a key. One with a data length of 0 has empty data (a key) or none (intermediate)."""

        def on_stat(found: Answer) -> None:
            stat = jute.stat_of(found.body)
            if stat.data_length or stat.owner:
                answer(KEY)
            else:
                self._ask(jute.get_data(path), on_node, answer)

        def on_node(found: Answer) -> None:
            answer(INTERMEDIATE if is_intermediate(jute.node_of(found.body)) else KEY)

        self._ask(jute.exists(path), on_stat, answer)

    def _ask(self, request: Request, then: Callable[[Answer], None], answer: Callable[[NodeState], None]) -> None:
        channel = self._channel
        assert channel is not None

        def done(future: asyncio.Future[Answer]) -> None:
            if self._channel is not channel or future.cancelled():
                return
            error = future.exception()
            if error is None:
                then(future.result())
            elif isinstance(error, ServerError) and error.number == Code.NO_NODE:
                answer(MISSING)
            elif isinstance(error, AnswerTimeout | ServerError):
                answer(KEY)  # an extra hint does no harm
            # otherwise the channel is lost: the next one publishes INVALIDATED

        try:
            channel.send(request, self._clock.monotonic() + self._request_s).add_done_callback(done)
        except ZooKeeperError:
            return  # the channel is lost, as above
