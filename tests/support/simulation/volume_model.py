"""A small model of the shared volume: what of it matters when brokers take over from each other.

| here | there |
|---|---|
| `BrokerDir.fence`, `claim` | `storage/log/fence.py`: a growing number; without its own, a broker confirms nothing |
| `BrokerDir.logs` | the commit log: one per generation, gone after recovery |
| `Volume.ledgers` | ledger files: what a topic's next holder can read |
| `BrokerDir.lock` | the lock file: held by a living process, also by one that stands still |
| `recover_peer` | `storage/log/peer_recovery.py`, with a pause between any two steps |

A record is a number that is never used twice, so "is it there" is all there is to check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from anabranch.model.errors import Error

Record = int
Pause = Callable[[], Awaitable[None]]


class LockedOut(Error):
    """Another process works in this broker's directory."""

    code = "locked-out"
    retryable = True


@dataclass(slots=True)
class BrokerDir:
    fence: int = 0
    logs: dict[int, list[tuple[int, Record]]] = field(default_factory=dict)  # generation → (slot, record)
    lock: object = None

    def claim(self) -> int:
        self.fence = max([self.fence, *self.logs]) + 1
        self.logs[self.fence] = []
        return self.fence


class Volume:
    def __init__(self) -> None:
        self._dirs: dict[str, BrokerDir] = {}
        self.ledgers: dict[int, set[Record]] = {}  # slot → what its topics' ledger files hold

    def directory(self, broker: str) -> BrokerDir:
        return self._dirs.setdefault(broker, BrokerDir())

    def flush(self, slot: int, records: list[Record]) -> None:
        self.ledgers.setdefault(slot, set()).update(records)

    async def take_over(self, broker: str, pause: Pause) -> int:
        """Fence, replay, remove: every step may be done again by others, and any time may pass between two of them."""
        directory = self.directory(broker)
        mine = directory.claim()
        await pause()
        earlier = [generation for generation in sorted(directory.logs) if generation < mine]
        for generation in earlier:
            for slot, record in list(directory.logs.get(generation, ())):
                self.flush(slot, [record])
            await pause()
        for generation in earlier:
            directory.logs.pop(generation, None)
        return mine

    async def recover_peer(self, broker: str, incarnation: int, me: object, pause: Pause) -> None:
        directory = self.directory(broker)
        await pause()
        is_locked = directory.lock is None
        if is_locked:
            directory.lock = me
        try:
            if not is_locked and directory.fence > incarnation:
                raise LockedOut(f"{broker} is starting again")
            await pause()
            await self.take_over(broker, pause)
        finally:
            if is_locked and directory.lock is me:
                directory.lock = None
