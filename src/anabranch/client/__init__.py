"""The SDK: an asyncio client for topics, and its blocking form.

The client must not know the broker's code. Both share only `model`, `protocol` and `runtime`.

| module | what it is |
|---|---|
| `client` | `connect` and `Client`: checks options, opens and closes producers and consumers |
| `blocking` | the same classes for threads, without await |
| `blocking_consumers` | blocking form of consumers |
| `blocking_base` | common part of the blocking classes: event loop thread, closing, docstrings |
| `config` | option values: batching, backoff, dead letters, connections |
| `errors` | errors of the SDK, and how a broker's error becomes one of them |
| `context` | what all producers and consumers of one client share |
| `opening` | arguments of producers and consumers, checked and turned into options |
| `arguments` | checks of arguments that applications pass |
| `async_resource` | the result of `client.producer(…)`: awaited, or entered with `async with` |
| `connection/` | connections, lookups, reconnecting |
| `topic/` | layouts of topics, kept current |
| `messages/` | messages, ids, batches and entries as values |
| `encryption/` | end-to-end encryption: bodies encrypted by producers, decrypted by consumers |
| `schema/` | values to bytes and back |
| `producer/` | sending |
| `consumer/` | receiving |
| `metrics/` | counters of producers and consumers, as values and as Prometheus text |
| `tracing/` | spans for send, receive and process |
| `processing/` | handlers that the SDK calls with received messages |
"""

from __future__ import annotations

from anabranch.client.client import Client, connect
from anabranch.client.config import (
    AccessMode,
    AckEvery,
    Backoff,
    Batching,
    Chunking,
    ConnectionPolicy,
    DeadLetter,
    ProcessingTimeout,
    Retry,
)
from anabranch.client.consumer.checkpoint import Checkpoint
from anabranch.client.consumer.checkpoint_consumer import CheckpointConsumer
from anabranch.client.consumer.queue_consumer import QueueConsumer
from anabranch.client.consumer.stream_consumer import StreamConsumer
from anabranch.client.encryption.decryptor import EncryptionContext
from anabranch.client.encryption.options import CryptoFailure, Decryption, Encryption, EncryptionKey
from anabranch.client.messages.compression import Compression
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch
from anabranch.client.metrics.metrics import ClientMetrics, ConsumerMetrics, ProducerMetrics, SendLatency
from anabranch.client.producer.producer import Producer
from anabranch.client.tracing.tracing import Tracing
from anabranch.runtime.credentials import Basic, Certificate, Credentials, Tls, Token

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
    "Credentials",
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
    "connect",
]
