"""Ledgers that a topic needs no more and whose files are not gone yet. The topic's record lists them until they are,
so that a crash leaves no file behind. Knows the ledger store; must not know why they are not needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.interface import LedgerStore


class LedgerGarbage:
    __slots__ = ("_found", "_ledgers", "_tasks")

    def __init__(self, found: Iterable[int], ledgers: LedgerStore, tasks: TaskOwner) -> None:
        self._found = list(found)
        self._ledgers, self._tasks = ledgers, tasks

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def listed(self) -> tuple[int, ...]:
        """What the record's next version says."""
        return tuple(self._found)

    def add(self, *ledgers: int) -> None:
        self._found.extend(ledgers)

    def take_back(self, ledger: int) -> None:
        """It is needed after all: the record that gave it up was not written."""
        self._found.remove(ledger)

    async def delete(self) -> None:
        """Files of ledgers the record no longer lists as needed; it forgets them with its next change."""
        for ledger in list(self._found):
            await self._ledgers.delete(ledger)
            if ledger in self._found:
                self._found.remove(ledger)

    def discard(self, ledgers: list[int]) -> None:
        """Delete in the background; those that stay behind are known to the record's next version."""
        self._found.extend(ledgers)
        self._tasks.spawn(self.delete(), "garbage")
