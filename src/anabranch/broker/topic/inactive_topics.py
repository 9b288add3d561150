"""Topics nobody uses: when they are deleted, and which sleeping ones are worth a look. Pure decisions.

Time-based policies must also reach topics that are not loaded. The patrol wakes some of them now and then; the sweep of
loaded topics does the rest and lets them sleep again.
"""

from __future__ import annotations

from anabranch.broker.catalog.policies import DeleteMode, InactiveRule


def should_delete(rule: InactiveRule | None, idle_seconds: float, subscriptions: int, is_caught_up: bool) -> bool:
    """Is a topic without producers and consumers to be deleted now?"""
    return is_eligible(rule, subscriptions, is_caught_up) and rule is not None and idle_seconds >= rule.seconds


def is_eligible(rule: InactiveRule | None, subscriptions: int, is_caught_up: bool) -> bool:
    """Would it be deleted if it only slept long enough?"""
    if rule is None:
        return False
    return subscriptions == 0 if rule.mode is DeleteMode.NO_SUBSCRIPTIONS else is_caught_up
