"""What of a namespace's policies holds for segments. Pure: segments live and die by their topic's layout."""

from __future__ import annotations

from dataclasses import replace

from anabranch.broker.catalog.policies import Policies, Retention


def segment_policies(policies: Policies, kept: Retention) -> Policies:
    """`kept`: the retention of scalable topics, unless the namespace has one."""
    return for_segments(replace(policies, retention=policies.retention or kept))


def for_segments(policies: Policies) -> Policies:
    return replace(
        policies,
        deduplicate=True,
        inactive=None,
        auto_create_subscriptions=True,  # the registry decides
        subscription_expires_minutes=0,
        compaction_threshold_bytes=0,
    )
