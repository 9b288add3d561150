"""News for all other brokers, told until each has them: at least once, the latest of each subject, in no more memory
than there are subjects. Knows errands, not what is told.

A broker that is not registered any more is told nothing: whoever leads in its place asks the owners itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import Any

from anabranch.broker.peers import BrokerPeers
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)

TELL_SECONDS = 5.0
AGAIN_SECONDS = 0.1
TOGETHER_MAX = 500  # events of one errand


class EventBroadcaster:
    def __init__(self, peers: BrokerPeers, errand: str, clock: Clock) -> None:
        self._peers = peers
        self._errand = errand
        self._clock = clock
        self._tasks = TaskOwner("segment news")
        self._waiting: dict[str, dict[Hashable, Any]] = {}  # broker -> what it has not heard yet, oldest first
        self._telling: set[str] = set()

    async def close(self) -> None:
        await self._tasks.close()

    def tell(self, subject: Hashable, event: Any) -> None:
        """All others, from now on; what they have not heard of the same subject is out of date."""
        for broker in self._peers.others():
            waiting = self._waiting.setdefault(broker, {})
            waiting.pop(subject, None)
            waiting[subject] = event
            if broker not in self._telling:
                self._telling.add(broker)
                self._tasks.spawn(self._tell(broker), f"tell {broker}")

    async def _tell(self, broker: str) -> None:
        waiting = self._waiting[broker]
        try:
            while waiting and broker in self._peers.others():
                some = dict(list(waiting.items())[:TOGETHER_MAX])
                try:
                    async with asyncio.timeout(TELL_SECONDS):
                        await self._peers.call(broker, self._errand, {"events": list(some.values())})
                except (Error, TimeoutError) as error:
                    log.info("segment news not heard yet", extra={"broker": broker, "reason": str(error)})
                    await self._clock.sleep(AGAIN_SECONDS)
                    continue
                for subject, event in some.items():
                    if waiting.get(subject) is event:
                        del waiting[subject]
        finally:
            self._telling.discard(broker)
            self._waiting.pop(broker, None)
