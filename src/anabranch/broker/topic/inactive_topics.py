"""Decides when an inactive topic is deleted. Pure."""

from __future__ import annotations

from anabranch.broker.catalog.policies import DeleteMode, InactiveRule


def should_delete(rule: InactiveRule | None, idle_seconds: float, subscriptions: int, is_caught_up: bool) -> bool:
    """Whether a topic without producers and consumers is deleted now."""
    return is_eligible(rule, subscriptions, is_caught_up) and rule is not None and idle_seconds >= rule.seconds


def is_eligible(rule: InactiveRule | None, subscriptions: int, is_caught_up: bool) -> bool:
    """Whether it would be deleted after a long enough idle time."""
    if rule is None:
        return False
    return subscriptions == 0 if rule.mode is DeleteMode.NO_SUBSCRIPTIONS else is_caught_up
