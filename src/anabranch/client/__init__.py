"""The SDK: an asyncio client for topics, with a blocking face in `anabranch.blocking`.

| module                          | knows                                                                  |
|---------------------------------|------------------------------------------------------------------------|
| `link` `lane` `intake`          | machines: one connection, one producing lane, one consuming intake     |
| `record` `draft`                | messages on their way out, the open batch, and the entry it becomes    |
| `delivery` `buffer` `slots`     | what a cumulative ack covers; fair turns; messages of an entry as bits |
| `holdings` `traversal` `redelivery` | machines: which segments are held; which are read, in the DAG's order  |
| `compression` `chunking` `chunked` | bodies packed; messages cut and put together; an intake's share of them |
| `credits`                       | what the broker still takes from a producer                            |
| `connection` `pool`             | sockets, lookups, redirects                                            |
| `attachment` `channel` `reader` `inbox` | staying attached to whoever serves the topic; consuming; waiting |
| `controller_session`            | being a member of an ordered subscription or a group                   |
| `topic_view` `topic_watch`      | the segments of a topic, and how they change                           |
| `lanes` `track` `lineage` `ring` | machine: all lanes of a producer, through splits and merges           |
| `lane_runner` `room`            | one lane on the wire; how much may be under way                        |
| `bulk` `contents` `message_batch` | many messages in one call: out, in, and as columns                   |
| `client` `producer`             | what applications use                                                  |
| `consumer` `queue_consumer` `stream_consumer` `checkpoint_consumer` | what consumers share, and their kinds |
| `message` `checkpoint` `policies` `errors` | values                                                      |
| `blocking`                      | the same names without await                                           |
"""

from __future__ import annotations

from anabranch.client.client import Client, connect
from anabranch.client.config import (
    AccessMode,
    Backoff,
    Batching,
    Chunking,
    ConnectionPolicy,
    DeadLetter,
    ProcessingTimeout,
)
from anabranch.client.consumer.checkpoint import Checkpoint
from anabranch.client.consumer.checkpoint_consumer import CheckpointConsumer
from anabranch.client.consumer.queue_consumer import QueueConsumer
from anabranch.client.consumer.stream_consumer import StreamConsumer
from anabranch.client.messages.compression import Compression
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch
from anabranch.client.producer.producer import Producer
from anabranch.runtime.credentials import Basic, Certificate, Credentials, Tls, Token

__all__ = [
    "AccessMode",
    "Backoff",
    "Basic",
    "Batching",
    "Certificate",
    "Checkpoint",
    "CheckpointConsumer",
    "Chunking",
    "Client",
    "Compression",
    "ConnectionPolicy",
    "DeadLetter",
    "Credentials",
    "Message",
    "MessageBatch",
    "MessageId",
    "ProcessingTimeout",
    "Producer",
    "QueueConsumer",
    "StreamConsumer",
    "Tls",
    "Token",
    "connect",
]
