"""Errors of the BookKeeper client, beside those of the storage port."""

from __future__ import annotations

from anabranch.storage.interface import Fenced, StorageError


class MalformedPacket(StorageError):
    """A peer sent bytes that are no packet of protocol version 2. The connection is not used any more."""

    code = "bookie-malformed-packet"


class BadMetadata(StorageError):
    """A value in BookKeeper's metadata store cannot be read."""

    code = "bookkeeper-bad-metadata"


class NotEnoughBookies(StorageError):
    """Fewer bookies can be written or read than the ledger's quorums need. Works again when bookies are back."""

    code = "bookkeeper-not-enough-bookies"
    retryable = True


class EntryTooLarge(StorageError):
    """The entry is larger than the largest frame that a bookie accepts. A bookie would close the connection."""

    code = "bookkeeper-entry-too-large"


class BookieUnreachable(StorageError):
    """One bookie did not answer. Others may have the entry."""

    code = "bookie-unreachable"
    retryable = True

    def __init__(self, bookie: str, reason: str) -> None:
        super().__init__(f"bookie {bookie}: {reason}")
        self.bookie = bookie


class LedgerFenced(Fenced):
    """Another process has closed the ledger, or recovers it: a new owner of the topic, or BookKeeper's autorecovery.
    The topic record says which of them; its owner continues in a new ledger."""

    code = "bookkeeper-ledger-fenced"
    retryable = True


class LedgerNodesUnavailable(StorageError):
    """BookKeeper's metadata store does not answer, or did not say whether it applied a write."""

    code = "bookkeeper-metadata-unavailable"
    retryable = True
