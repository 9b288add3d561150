"""Whether appends are accepted: one state for all ledgers of a store. Also translates errors of the operating system.

open <-> full                        a probe found room again
open, full -> fenced, failed, closed  permanent
"""

from __future__ import annotations

import errno

from anabranch.storage.interface import StorageError, StorageFull
from anabranch.storage.ledger.record_format import log_stamp

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def translated(error: BaseException) -> StorageError:
    """The error that the owner of an append gets for a failure of the disk."""
    if isinstance(error, StorageError):
        return error
    made = StorageFull("no space left on the device") if is_full(error) else StorageError(f"the disk failed: {error}")
    made.__cause__ = error
    return made


class AppendGate:
    __slots__ = ("refusal", "log_stamp")

    def __init__(self) -> None:
        self.refusal: StorageError | None = None
        self.log_stamp = log_stamp(1)  # stamp of new records: the current log file

    def refuse(self) -> StorageError:
        """A new error to raise, because one that is raised repeatedly would collect tracebacks."""
        assert self.refusal is not None, "the gate is open"
        return type(self.refusal)(str(self.refusal))

    def fill(self, error: StorageError) -> None:
        if self.refusal is None:
            self.refusal = error

    def reopen(self) -> None:
        if isinstance(self.refusal, StorageFull):
            self.refusal = None

    def shut(self, error: StorageError) -> None:
        """Refuse appends permanently. The first reason is kept, except that "full" is replaced."""
        if self.refusal is None or isinstance(self.refusal, StorageFull):
            self.refusal = error

    @property
    def is_full(self) -> bool:
        return isinstance(self.refusal, StorageFull)
