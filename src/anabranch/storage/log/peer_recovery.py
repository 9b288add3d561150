"""Recovering the log of another broker: of one that died, or that is frozen or cut off and must confirm nothing more.

Whoever claims a generation fences all earlier ones, so a late successor must not hit a broker that is back already: the
lock file tells whether a process lives there, the fence whether it is the one that was declared dead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from anabranch.runtime.disk import Disk
from anabranch.storage import volume
from anabranch.storage.interface import StorageError
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.log.fence import log_dir
from anabranch.storage.log.recovery import Recovery, take_over
from anabranch.storage.settings import StorageSettings

log = logging.getLogger(__name__)

FILES_MAX = 256


class BeingRecovered(StorageError):
    """The broker is starting again and recovers its own log; look again in a moment."""

    code = "being-recovered"
    retryable = True


def recover_peer(disk: Disk, root: str, broker_id: str, incarnation: int) -> Recovery:
    """Afterwards that incarnation confirms nothing, and what it confirmed is in the ledger files. Blocks."""
    directory = volume.broker_dir(root, broker_id)
    lock = disk.lock(f"{directory}/lock")
    try:
        if lock is None and _generation(disk, directory) > incarnation:
            raise BeingRecovered(f"broker {broker_id!r} is starting again")
        files = LedgerFiles(disk, root, FILES_MAX)
        try:
            fence, recovery = take_over(disk, directory, files, lambda _: None)
            fence.close()
        finally:
            files.close()
        return recovery
    finally:
        if lock is not None:
            lock.release()


def seize_log(disk: Disk, root: Path, broker_id: str, files: LedgerFiles, pause_at: Callable[[str], None]) -> Recovery:
    """The same without asking who lives there, by an operator's word: whoever it is confirms nothing more. Blocks."""
    StorageSettings(dir=root, broker_id=broker_id)  # refuses a name that cannot be one
    directory = volume.broker_dir(str(root), broker_id)
    disk.make_dir(directory)
    fence, recovery = take_over(disk, directory, files, pause_at)
    fence.close()
    disk.remove_dir(log_dir(directory, fence.generation))
    return recovery


def report(recovery: Recovery, broker_id: str) -> None:
    """Says in our log what was found in the broker's."""
    if recovery.records or recovery.damaged:
        extra = {"broker": broker_id, "records": recovery.records, "ledgers": len(recovery.ledgers)}
        log.info("log recovered", extra=extra)
    for path, place in recovery.torn:
        log.warning("the log ends inside a group", extra={"path": path, "offset": place})
    for path, place in recovery.damaged:
        log.error("damaged place in the log", extra={"path": path, "offset": place})


def _generation(disk: Disk, directory: str) -> int:
    word = disk.map_word(f"{directory}/fence")
    try:
        return word.get()
    finally:
        word.close()
