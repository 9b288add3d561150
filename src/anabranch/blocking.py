"""`anabranch.blocking.connect(url)`: the SDK without await. This module only exports names of `client.blocking`."""

from __future__ import annotations

from anabranch.client.blocking import (
    BlockingCheckpointConsumer,
    BlockingClient,
    BlockingProducer,
    BlockingQueueConsumer,
    BlockingStreamConsumer,
    connect,
)

__all__ = [
    "BlockingCheckpointConsumer",
    "BlockingClient",
    "BlockingProducer",
    "BlockingQueueConsumer",
    "BlockingStreamConsumer",
    "connect",
]
