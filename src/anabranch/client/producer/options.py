"""The options of a producer. Values, checked by the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.client.config import AccessMode, Batching
from anabranch.client.encryption.entry_cipher import EntryCipher
from anabranch.client.encryption.options import Encryption
from anabranch.client.messages.compression import Compression
from anabranch.client.messages.outgoing import EntryFormat
from anabranch.client.schema.schema import Schema
from anabranch.model.partition_hash import PartitionHash


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    name: str
    is_name_given: bool
    batching: Batching
    send_timeout_s: float  # 0: never
    pending_bytes_max: int
    properties: Mapping[str, str] | None
    operation_timeout_s: float
    compression: Compression = Compression.NONE
    chunk_bytes: int | None = None
    schema: Schema | None = None
    access: AccessMode = AccessMode.SHARED
    initial_sequence_id: int | None = None  # the last one in use; None: the last stored one of this name

    partition_hash: PartitionHash | None = None  # of a regular topic; None: as its broker says
    encryption: Encryption | None = None

    def style(self) -> EntryFormat:
        cipher = None if self.encryption is None else EntryCipher()
        return EntryFormat(self.name, self.compression, chunk_bytes=self.chunk_bytes, cipher=cipher)
