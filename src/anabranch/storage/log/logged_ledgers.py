"""Which ledgers the commit log still holds records of, and for which of them the log's list of released ones speaks.

Recovering a log brings back every ledger it holds, unless that list (`released`) names it and its file is gone. So a
ledger that is handed over or deleted must be listed as long as the log holds it, and not a moment longer. Pure: numbers
in, numbers out; the list itself is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable


class LoggedLedgers:
    __slots__ = ("_listed", "last_log")

    def __init__(self) -> None:
        self.last_log: dict[int, int] = {}  # ledger -> the last log file with records of it; written per batch
        self._listed: set[int] = set()  # … those that the list of released ones knows

    def release(self, is_closed: Callable[[int], bool]) -> list[int]:
        """Those that are closed and not on the list yet: they count as listed from now on."""
        closed = [ledger_id for ledger_id in self.last_log.keys() - self._listed if is_closed(ledger_id)]
        self._listed.update(closed)
        return closed

    def forget(self, ledger_id: int) -> bool:
        """It is deleted. Must it be listed, for the log would bring it back?"""
        is_logged = self.last_log.pop(ledger_id, None) is not None and ledger_id not in self._listed
        self._listed.discard(ledger_id)
        return is_logged

    def retired(self, log_number: int) -> None:
        """Log files up to this one are gone, and with them what they held."""
        self.last_log = {ledger: number for ledger, number in self.last_log.items() if number > log_number}
        self._listed &= self.last_log.keys()
