"""Recovers the log of another broker that died, or that is frozen or cut off and must not confirm any more.

A claim fences all earlier generations, so a late recovery must not fence a broker that has restarted already. The lock
file shows whether a process runs there; the fence shows whether it is the one that was declared dead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from anabranch.runtime.disk import Disk
from anabranch.runtime.logs import get_logger
from anabranch.storage import volume
from anabranch.storage.interface import StorageError
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.log.fence import log_dir
from anabranch.storage.log.recovery import Recovery, take_over
from anabranch.storage.settings import StorageSettings

log = get_logger(__name__)

FILES_MAX = 256


class BeingRecovered(StorageError):
    """The broker has restarted and recovers its own log; try again in a moment."""

    code = "being-recovered"
    retryable = True


def recover_peer(disk: Disk, root: str, broker_id: str, incarnation: int) -> Recovery:
    """Afterwards that incarnation confirms nothing, and everything it confirmed is in the ledger files. Blocks."""
    directory = volume.broker_dir(root, broker_id)
    lock = disk.lock(f"{directory}/lock")
    try:
        if lock is None and _generation(disk, directory) > incarnation:
            raise BeingRecovered(f"broker {broker_id!r} has restarted and recovers its own log")
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
    """Recovery requested by an operator: fences the broker without checking whether its process runs. Blocks."""
    StorageSettings(dir=root, broker_id=broker_id)  # rejects an invalid broker id
    directory = volume.broker_dir(str(root), broker_id)
    disk.make_dir(directory)
    fence, recovery = take_over(disk, directory, files, pause_at)
    fence.close()
    disk.remove_dir(log_dir(directory, fence.generation))
    return recovery


def report(recovery: Recovery, broker_id: str) -> None:
    """Log the result of a recovery."""
    if recovery.records or recovery.damaged:
        extra = {"broker": broker_id, "records": recovery.records, "ledgers": len(recovery.ledgers)}
        log.info("commit log recovered", extra=extra)
    for path, place in recovery.torn:
        log.warning(
            "commit log ends inside a group; the group was never confirmed", extra={"path": path, "offset": place}
        )
    for path, place in recovery.damaged:
        log.error("commit log is damaged; entries at this offset are lost", extra={"path": path, "offset": place})


def _generation(disk: Disk, directory: str) -> int:
    word = disk.map_word(f"{directory}/fence")
    try:
        return word.get()
    finally:
        word.close()
