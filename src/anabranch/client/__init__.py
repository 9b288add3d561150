"""The SDK: an asyncio client for topics, with a blocking face in `anabranch.blocking`.

| module                          | knows                                                                  |
|---------------------------------|------------------------------------------------------------------------|
| `link` `lane` `intake`          | machines: one connection, one producing lane, one consuming intake     |
| `record` `delivery`             | what an entry is made of; what a cumulative ack covers                 |
| `compression` `chunking`        | bodies packed; messages cut and put together                           |
| `credits`                       | what the broker still takes from a producer                            |
| `connection` `pool`             | sockets, lookups, redirects                                            |
| `attachment`                    | staying attached to whoever serves the topic                           |
| `topic_view` `topic_watch`      | the segments of a topic, and how they change                           |
| `producer` `consumer` `client`  | what applications use                                                  |
| `message` `policies` `errors`   | values                                                                 |
| `blocking`                      | the same names without await                                           |
"""

from __future__ import annotations

from anabranch.client.client import Client, connect
from anabranch.client.compression import Compression
from anabranch.client.consumer import QueueConsumer, StreamConsumer
from anabranch.client.message import Message, MessageId
from anabranch.client.policies import Backoff, Batching, Chunking, ConnectionPolicy
from anabranch.client.producer import Producer

__all__ = [
    "Backoff",
    "Batching",
    "Chunking",
    "Client",
    "Compression",
    "ConnectionPolicy",
    "Message",
    "MessageId",
    "Producer",
    "QueueConsumer",
    "StreamConsumer",
    "connect",
]
