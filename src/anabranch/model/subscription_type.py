"""Subscription types, numbered as on the wire."""

from __future__ import annotations

from enum import IntEnum


class SubscriptionType(IntEnum):
    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def label(self) -> str:
        return ("Exclusive", "Shared", "Failover", "Key_Shared")[self]

    @property
    def is_shared(self) -> bool:
        """Whether several consumers receive messages at the same time."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
