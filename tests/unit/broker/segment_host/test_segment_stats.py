"""Small parts of a segment: policies, rates over two windows."""

from __future__ import annotations

import pytest

from anabranch.broker.catalog.policies import InactiveRule, Policies, Retention, for_segments, segment_policies
from anabranch.broker.segment_host.segment_stats import LOOK_SECONDS, SHORT_SAMPLES, SHORT_SECONDS
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic_registry.rate_meter import Meter
from anabranch.broker.topic_registry.unloaded_scan import needs_scan
from anabranch.node.settings.node import NodeSettings

WEEK_MS = 7 * 24 * 3600 * 1000


def test_segments_use_namespace_policies_except_for_deletion() -> None:
    kept = NodeSettings().scalable_topics.retention
    assert kept == Retention(WEEK_MS, -1)
    record = {
        "message_ttl_in_seconds": 7,
        "deduplicationEnabled": False,
        "subscription_expiration_time_minutes": 5,
        "inactive_topic_policies": {
            "deleteWhileInactive": True,
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 1,
        },
    }
    policies = Policies.of(record, BrokerSettings())
    assert isinstance(policies.inactive, InactiveRule)
    found = segment_policies(policies, kept)
    assert (found.deduplicate, found.inactive, found.subscription_expires_minutes) == (True, None, 0)
    assert (found.ttl_seconds, found.retention) == (7, kept)
    own = Policies.of({"retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}}, BrokerSettings())
    assert segment_policies(own, kept).retention == own.retention != kept


def test_unloaded_segments_are_scanned_only_for_namespace_policies() -> None:
    plain, settings = Policies.of({}, BrokerSettings()), BrokerSettings()
    assert not needs_scan(for_segments(plain))
    assert needs_scan(for_segments(Policies.of({"message_ttl_in_seconds": 7}, settings)))
    assert not needs_scan(for_segments(Policies.of({"subscription_expiration_time_minutes": 5}, settings)))


def test_short_window_forgets_before_the_long_one() -> None:
    short, long = Meter(SHORT_SECONDS, SHORT_SAMPLES), Meter()
    now, total = 0.0, 0
    while now <= 60.0:
        rates = short.rates(now, (total,)), long.rates(now, (total,))
        now += LOOK_SECONDS
        total += 100 if now <= 30.0 else 0  # 40 per second, for half a minute
    assert rates[0] == (0.0,)
    assert rates[1][0] == pytest.approx(20.0, rel=0.1)
