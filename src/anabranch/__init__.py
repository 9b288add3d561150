"""Anabranch: a durable message broker in Python that stock Pulsar clients use unchanged, and its own client.

Importing the package is cheap: it loads only the error root. The names of the client (`connect`, `Client`, `Batching`
…) are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anabranch.model.errors import Error

if TYPE_CHECKING:
    from anabranch import admin, blocking, schema
    from anabranch.client import (
        AccessMode,
        AckEvery,
        Backoff,
        Basic,
        Batching,
        Certificate,
        Checkpoint,
        CheckpointConsumer,
        Chunking,
        Client,
        ClientMetrics,
        Compression,
        ConnectionPolicy,
        ConsumerMetrics,
        CryptoFailure,
        DeadLetter,
        Decryption,
        Encryption,
        EncryptionContext,
        EncryptionKey,
        Message,
        MessageBatch,
        MessageId,
        ProcessingTimeout,
        Producer,
        ProducerMetrics,
        QueueConsumer,
        Retry,
        SendLatency,
        StreamConsumer,
        Tls,
        Token,
        Tracing,
        connect,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "AccessMode",
    "AckEvery",
    "Backoff",
    "Basic",
    "Batching",
    "Certificate",
    "Checkpoint",
    "CheckpointConsumer",
    "Chunking",
    "Client",
    "ClientMetrics",
    "Compression",
    "ConnectionPolicy",
    "ConsumerMetrics",
    "CryptoFailure",
    "DeadLetter",
    "Decryption",
    "Encryption",
    "EncryptionContext",
    "EncryptionKey",
    "Error",
    "Message",
    "MessageBatch",
    "MessageId",
    "ProcessingTimeout",
    "Producer",
    "ProducerMetrics",
    "QueueConsumer",
    "Retry",
    "SendLatency",
    "StreamConsumer",
    "Tls",
    "Token",
    "Tracing",
    "__version__",
    "admin",
    "blocking",
    "connect",
    "schema",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
    import importlib

    if name in ("admin", "blocking", "schema"):
        return importlib.import_module(f"anabranch.{name}")
    value = getattr(importlib.import_module("anabranch.client"), name)
    globals()[name] = value
    return value
