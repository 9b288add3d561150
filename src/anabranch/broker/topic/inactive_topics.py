"""Topics nobody uses: when they are deleted, and which sleeping ones are worth a look. Pure decisions.

Time-based policies must also reach topics that are not loaded. The patrol wakes some of them now and then; the sweep of
loaded topics does the rest and lets them sleep again.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.broker.catalog.policies import DeleteMode, InactiveRule, Policies
from anabranch.model.names import TopicName

PATROL_SECONDS = 60.0
WAKE_MAX = 100  # per round
REVISIT_SECONDS = 600.0
VISITS_MAX = 100_000


def is_doomed(rule: InactiveRule | None, idle_seconds: float, subscriptions: int, is_caught_up: bool) -> bool:
    """Is a topic without producers and consumers to be deleted now?"""
    return is_eligible(rule, subscriptions, is_caught_up) and rule is not None and idle_seconds >= rule.seconds


def is_eligible(rule: InactiveRule | None, subscriptions: int, is_caught_up: bool) -> bool:
    """Would it be deleted if it only slept long enough?"""
    if rule is None:
        return False
    return subscriptions == 0 if rule.mode is DeleteMode.NO_SUBSCRIPTIONS else is_caught_up


def needs_patrol(policies: Policies) -> bool:
    """Does time alone change something in this namespace's topics?"""
    return bool(
        policies.ttl_seconds
        or policies.retention is not None
        or policies.age_quota is not None
        or policies.inactive is not None
        or policies.subscription_expires_minutes
    )


class Visits:
    """Which sleeping topics were woken when; bounded."""

    def __init__(self) -> None:
        self._at: dict[TopicName, float] = {}

    def choose(self, sleeping: Iterable[TopicName], now: float) -> list[TopicName]:
        chosen: list[TopicName] = []
        for name in sleeping:
            if len(chosen) >= WAKE_MAX:
                break
            if now - self._at.get(name, -REVISIT_SECONDS) >= REVISIT_SECONDS:
                self._at.pop(name, None)
                self._at[name] = now
                chosen.append(name)
        while len(self._at) > VISITS_MAX:
            del self._at[next(iter(self._at))]
        return chosen
