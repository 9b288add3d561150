"""Housekeeping of one loaded topic: TTL, backlog quotas, expired subscriptions.

Runs with every sweep; quotas are also checked when a producer is created. `backlog_quota` decides about quotas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import proxy

from anabranch.broker.catalog.policies import QuotaPolicy
from anabranch.broker.errors import QuotaExceeded, QuotaHold
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.backlog_quota import Blocked, EvictOlderThan, EvictUpTo, check_age, check_size
from anabranch.model.position import Position
from anabranch.protocol.entry import publish_time_of
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.storage.topic.topic_log import TopicLog

if TYPE_CHECKING:
    from anabranch.broker.topic.topic import Topic

log = get_logger(__name__)

LAST_USE = "last-use"  # name of the state blob
READ_BYTES = 64 * 1024
SAVE_MS = 60_000  # precision of the saved last use of a subscription


async def expire_older(topic_log: TopicLog, subscriptions: list[Subscription], before_ms: int) -> int:
    """Acknowledge everything published before `before_ms`. Returns the number of entries."""
    first_kept = await topic_log.position_at_time(before_ms)
    return sum(one.expire_up_to(Position(first_kept.ledger, first_kept.entry - 1)) for one in subscriptions)


class LastUse:
    """When each durable subscription last had a consumer. Saved with a precision of `SAVE_MS`."""

    def __init__(self) -> None:
        self._at_ms: dict[str, int] = {}
        self._saved: dict[str, int] = {}

    def load(self, saved: bytes | None) -> None:
        self._at_ms = {str(name): int(at) for name, at in json.loads(saved).items()} if saved else {}
        self._saved = dict(self._at_ms)

    def update(self, subscriptions: Mapping[str, Subscription], now_ms: int) -> None:
        """Subscriptions with a consumer, and unknown ones, count as used now; deleted ones are dropped."""
        self._at_ms = {
            name: now_ms if one.consumers else self._at_ms.get(name, now_ms)
            for name, one in subscriptions.items()
            if one.is_durable
        }

    def unused(self, now_ms: int, minutes: int) -> list[str]:
        return [name for name, at in self._at_ms.items() if now_ms - at >= minutes * 60_000]

    def changes(self) -> bytes | None:
        """The state to save; None while the saved one is precise enough."""
        if self._at_ms.keys() == self._saved.keys() and all(
            at - self._saved[name] < SAVE_MS for name, at in self._at_ms.items()
        ):
            return None
        self._saved = dict(self._at_ms)
        return json.dumps(self._saved).encode()


class Housekeeping:
    def __init__(self, topic: Topic, topic_log: TopicLog, clock: Clock) -> None:
        self._topic: Topic = proxy(topic)  # the topic owns this object
        self._log = topic_log
        self._clock = clock
        self._last_use = LastUse()
        self._blocked: Blocked | None = None

    def load(self) -> None:
        self._last_use.load(self._log.state(LAST_USE))

    def save(self) -> None:
        changes = self._last_use.changes()
        if changes is not None:
            self._log.save_state_nowait(LAST_USE, changes)

    @property
    def blocked(self) -> Blocked | None:
        return self._blocked

    def _durable(self) -> list[Subscription]:
        return [one for one in self._topic.subscriptions.values() if one.is_durable]

    async def run(self) -> None:
        policies = self._topic.policies
        if policies.ttl_seconds:
            await expire_older(self._log, self._durable(), self._clock.now_ms() - policies.ttl_seconds * 1000)
        await self.check_quota()
        if policies.subscription_expires_minutes:
            await self._drop_unused(policies.subscription_expires_minutes)

    def resting_seconds(self) -> float:
        """Seconds until time-based work may be due."""
        policies = self._topic.policies
        if policies.subscription_expires_minutes or policies.compaction_threshold_bytes or self._blocked is not None:
            return 0.0
        has_ages = policies.ttl_seconds or policies.age_quota is not None
        if has_ages and any(one.cursor.has_backlog for one in self._durable()):
            return 0.0
        return self._log.resting_seconds()

    async def _drop_unused(self, minutes: int) -> None:
        now_ms = self._clock.now_ms()
        self._last_use.update(self._topic.subscriptions, now_ms)
        for name in self._last_use.unused(now_ms, minutes):
            if not self._topic.subscriptions[name].consumers:
                log.info("deleted expired subscription", extra={"topic": str(self._topic.name), "subscription": name})
                await self._topic.unsubscribe(name, force=False)
        self.save()

    # -- quotas

    async def oldest_age_ms(self) -> int:
        """Age of the oldest message in any backlog; -1 without one."""
        behind = [one for one in self._durable() if one.cursor.has_backlog]
        if not behind:
            return -1
        start = min(one.cursor.first_unacked() for one in behind)
        found = await self._log.read(start, 1, READ_BYTES, self._log.last_position)
        published = publish_time_of(found[0].payload) if found else 0
        return max(self._clock.now_ms() - published, 0) if published else -1

    async def check_quota(self) -> None:
        """Compare the backlog with its quotas: block producers, evict entries, or admit producers again."""
        policies, blocked = self._topic.policies, None
        durable = self._durable()
        if policies.size_quota is not None and durable:
            slowest = min(one.cursor.mark_delete for one in durable)
            verdict = check_size(policies.size_quota, list(self._log.chain), slowest)
            if isinstance(verdict, EvictUpTo):
                for one in durable:
                    one.expire_up_to(verdict.position)
            elif isinstance(verdict, Blocked):
                blocked = verdict
        if policies.age_quota is not None and durable:
            verdict = check_age(policies.age_quota, await self.oldest_age_ms())
            if isinstance(verdict, EvictOlderThan):
                await expire_older(self._log, durable, self._clock.now_ms() - verdict.seconds * 1000)
            elif isinstance(verdict, Blocked):
                blocked = blocked or verdict
        was_blocked, self._blocked = self._blocked is not None, blocked
        if blocked is not None and not was_blocked:
            log.warning(
                "backlog quota exceeded",
                extra={"topic": str(self._topic.name), "reason": blocked.reason},
            )
            self._topic.close_producers()

    async def check_not_blocked(self) -> None:
        """Raises while the quota is exceeded. Checks again, so that producers need not wait for the next sweep."""
        if self._blocked is not None:
            await self.check_quota()
        blocked = self._blocked
        if blocked is not None:
            text = f"Cannot create producer on topic with backlog quota exceeded: {blocked.reason}"
            raise QuotaHold(text) if blocked.policy is QuotaPolicy.HOLD else QuotaExceeded(text)
