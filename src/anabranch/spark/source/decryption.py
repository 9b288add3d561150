"""Decrypts entries before they become rows. Runs in executors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anabranch.client.encryption.decryptor import Decryptor
from anabranch.client.encryption.key_fetcher import unwrapped_key
from anabranch.client.encryption.options import CryptoFailure, Decryption
from anabranch.client.errors import DecryptionFailed
from anabranch.protocol.entry import parts, seal_entry
from anabranch.runtime.logs import get_logger
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.client.entry_fetcher import Stored

log = get_logger(__name__)


class EntryDecryption:
    """One for each task. A data key is unwrapped once."""

    def __init__(self, decryption: Decryption, cluster: ClusterClient) -> None:
        self._decryption = decryption
        self._cluster = cluster
        self._decryptor = Decryptor(CryptoFailure(decryption.on_failure))

    def opened(self, entries: Sequence[Stored]) -> tuple[list[Stored], int]:
        """The entries in plain, and the number of messages that were skipped. Raises BadEntry, DecryptionFailed or
        KeyUnavailable."""
        found: list[Stored] = []
        skipped = 0
        for one in entries:
            of, _ = parts(one.payload)
            if not of.encryption_keys:
                found.append(one)
                continue
            messages = of.num_messages_in_batch if of.HasField("num_messages_in_batch") else 1
            try:
                found.append(self._plain(one))
            except DecryptionFailed as error:
                if self._decryptor.is_failure_final:
                    raise
                skipped += messages
                log.warning(
                    "skipping an entry that cannot be decrypted",
                    extra={"position": str(one.position), "messages": messages, "reason": error.reason},
                )
        return found, skipped

    def _plain(self, one: Stored) -> Stored:
        now = self._cluster.clock.monotonic()
        missing = self._decryptor.missing(one.payload, now)
        if missing is not None:
            wait_s = self._cluster.timeout_s
            key = self._cluster.call(partial(unwrapped_key, self._decryption, missing, wait_s))
            if isinstance(key, str):
                self._decryptor.failed(missing, key, now)
            else:
                self._decryptor.unwrapped(*key)
        read = self._decryptor.read(one.payload)
        return Stored(one.position, seal_entry(read.of, read.data, checksum=False))
