"""Ledgers that a topic no longer needs and whose files may still exist.

The topic record lists them until they are deleted, so that a crash leaves no unlisted file behind. A ledger of the
chain is deleted only after the record has listed it here: a former owner cannot write the record, so it deletes nothing
that its successor may have kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.interface import LedgerStore, StorageError

log = get_logger(__name__)


class LedgerGarbage:
    __slots__ = ("_found", "_ledgers", "_tasks", "_unlisted")

    def __init__(self, found: Iterable[int], ledgers: LedgerStore, tasks: TaskOwner) -> None:
        self._found = list(found)
        self._unlisted: set[int] = set()  # not in the record yet
        self._ledgers, self._tasks = ledgers, tasks

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def listed(self) -> tuple[int, ...]:
        """The list for the next write of the record."""
        return tuple(self._found)

    def add(self, *ledgers: int) -> None:
        """To be deleted when the record lists them: see `saved`."""
        self._found.extend(ledgers)
        self._unlisted.update(ledgers)

    def saved(self, listed: Iterable[int]) -> None:
        """The record was written with this list."""
        self._unlisted.difference_update(listed)

    def take_back(self, ledger: int) -> None:
        """The ledger is still needed, because the record that released it was not written."""
        self._found.remove(ledger)
        self._unlisted.discard(ledger)

    async def delete(self) -> None:
        """Delete the files of all listed ledgers; the next write of the record no longer lists them."""
        for ledger in [one for one in self._found if one not in self._unlisted]:
            await self._ledgers.delete(ledger)
            if ledger in self._found:
                self._found.remove(ledger)

    def discard(self, ledgers: list[int]) -> None:
        """Delete in the background; ledgers that could not be deleted are listed in the next write of the record.

        For ledgers that no successor needs, whatever the record says of them: a later one has replaced their content.
        """
        self._found.extend(ledgers)
        self._tasks.spawn(self._delete_quietly(), "garbage")

    async def _delete_quietly(self) -> None:
        try:
            await self.delete()
        except StorageError as error:
            log.warning(
                "unused ledgers not deleted; the topic record lists them until they are",
                extra={"ledgers": self._found, "reason": str(error)},
            )
