"""Sends events to all other brokers, at least once each. Of several events with one subject only the latest is sent, so
memory is bounded by the number of subjects.

Events for a broker that is not registered any more are dropped: the leader that replaces it asks the owners itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from anabranch.broker.peers import BrokerPeers
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

SEND_SECONDS = 5.0
AGAIN_SECONDS = 0.1
TOGETHER_MAX = 500  # events per peer call


class EventBroadcaster:
    def __init__(self, peers: BrokerPeers, call: str, clock: Clock) -> None:
        self._peers = peers
        self._call = call
        self._clock = clock
        self._tasks = TaskOwner("segment events")
        self._waiting: dict[str, dict[Hashable, Any]] = {}  # broker -> events that it has not confirmed, oldest first
        self._sending: set[str] = set()

    async def close(self) -> None:
        await self._tasks.close()

    def send(self, subject: Hashable, event: Any) -> None:
        """To all other brokers; replaces an unsent event of the same subject."""
        for broker in self._peers.others():
            waiting = self._waiting.setdefault(broker, {})
            waiting.pop(subject, None)
            waiting[subject] = event
            if broker not in self._sending:
                self._sending.add(broker)
                self._tasks.spawn(self._send(broker), f"send {broker}")

    async def _send(self, broker: str) -> None:
        waiting = self._waiting[broker]
        try:
            while waiting and broker in self._peers.others():
                some = dict(list(waiting.items())[:TOGETHER_MAX])
                try:
                    async with asyncio.timeout(SEND_SECONDS):
                        await self._peers.call(broker, self._call, {"events": list(some.values())})
                except (Error, TimeoutError) as error:
                    log.info(
                        "segment events not delivered yet, retrying", extra={"broker": broker, "reason": str(error)}
                    )
                    await self._clock.sleep(AGAIN_SECONDS)
                    continue
                for subject, event in some.items():
                    if waiting.get(subject) is event:
                        del waiting[subject]
        finally:
            self._sending.discard(broker)
            self._waiting.pop(broker, None)
