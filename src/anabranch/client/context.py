"""What the producers and consumers of one client share: connections, time, backoff, layout watches, tracing."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.client.config import Backoff
from anabranch.client.connection.connection_pool import ConnectionPool
from anabranch.client.topic.layout_watch import LayoutWatches
from anabranch.client.tracing.tracing import Tracing
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Made once per client, and given to every part of it."""

    pool: ConnectionPool
    backoff: Backoff
    clock: Clock
    chance: Chance
    watches: LayoutWatches
    tracing: Tracing | None = None
