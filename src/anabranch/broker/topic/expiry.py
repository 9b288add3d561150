"""What time takes away: messages past their time to live, subscriptions nobody uses. Deciding is pure; `expire_older`
does the one lookup it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from anabranch.broker.subscription.subscription import Subscription
from anabranch.model.position import Position
from anabranch.storage.topic.topic_log import TopicLog

NOTED_MS = 60_000  # how exactly the last use of a subscription is written down


async def expire_older(topic_log: TopicLog, subscriptions: list[Subscription], before_ms: int) -> int:
    """Everything published before counts as acknowledged; how many entries that was."""
    first_kept = await topic_log.position_at_time(before_ms)
    return sum(one.expire_up_to(Position(first_kept.ledger, first_kept.entry - 1)) for one in subscriptions)


class LastUse:
    """When each durable subscription last had a consumer. Written down at times: a restart forgets little."""

    def __init__(self) -> None:
        self._at_ms: dict[str, int] = {}
        self._written: dict[str, int] = {}

    def load(self, saved: bytes | None) -> None:
        self._at_ms = {str(name): int(at) for name, at in json.loads(saved).items()} if saved else {}
        self._written = dict(self._at_ms)

    def note(self, subscriptions: Mapping[str, Subscription], now_ms: int) -> None:
        """Used ones are used now; unknown ones begin now; what is gone is forgotten."""
        self._at_ms = {
            name: now_ms if one.consumers else self._at_ms.get(name, now_ms)
            for name, one in subscriptions.items()
            if one.is_durable
        }

    def unused(self, now_ms: int, minutes: int) -> list[str]:
        return [name for name, at in self._at_ms.items() if now_ms - at >= minutes * 60_000]

    def at_ms(self, name: str) -> int:
        return self._at_ms.get(name, 0)

    def changes(self) -> bytes | None:
        """What to write down; None while the last writing is close enough."""
        if self._at_ms.keys() == self._written.keys() and all(
            at - self._written[name] < NOTED_MS for name, at in self._at_ms.items()
        ):
            return None
        self._written = dict(self._at_ms)
        return json.dumps(self._written).encode()
