"""May appends come in? One small state for all ledgers of a store, and the translation of the system's errors.

open -> full (and back, when a probe finds room) · open -> fenced, failed or closed (for good).
"""

from __future__ import annotations

import errno

from anabranch.storage.interface import StorageError, StorageFull
from anabranch.storage.ledger.record_format import log_stamp

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def translated(error: BaseException) -> StorageError:
    """What the owner of an append is told about a failure of the disk."""
    if isinstance(error, StorageError):
        return error
    made = StorageFull("no space left on the device") if is_full(error) else StorageError(f"the disk failed: {error}")
    made.__cause__ = error
    return made


class AppendGate:
    __slots__ = ("refusal", "log_stamp")

    def __init__(self) -> None:
        self.refusal: StorageError | None = None
        self.log_stamp = log_stamp(1)  # for new records: the current log file

    def refuse(self) -> StorageError:
        """A fresh error to raise (one that is raised again and again would collect tracebacks)."""
        assert self.refusal is not None, "the gate is open"
        return type(self.refusal)(str(self.refusal))

    def fill(self, error: StorageError) -> None:
        if self.refusal is None:
            self.refusal = error

    def reopen(self) -> None:
        if isinstance(self.refusal, StorageFull):
            self.refusal = None

    def shut(self, error: StorageError) -> None:
        """For good; the first reason stays, except that "full" gives way."""
        if self.refusal is None or isinstance(self.refusal, StorageFull):
            self.refusal = error

    @property
    def is_full(self) -> bool:
        return isinstance(self.refusal, StorageFull)
