"""`anabranch.blocking.connect(url)`: the SDK without await. This module only exports names of `client.blocking`."""

from __future__ import annotations

from anabranch.client.blocking import (
    BlockingClient,
    BlockingProducer,
    BlockingQueueConsumer,
    BlockingStreamConsumer,
    connect,
)

__all__ = ["BlockingClient", "BlockingProducer", "BlockingQueueConsumer", "BlockingStreamConsumer", "connect"]
