"""Errors of the BookKeeper client, beside those of the storage port."""

from __future__ import annotations

from anabranch.storage.interface import StorageError


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
