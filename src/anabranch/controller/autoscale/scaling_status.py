"""The state of a topic's auto-scaling as plain values, for REST and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.controller.autoscale.topic_scaler import TopicScaler
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.model.autoscale.decision import Decision
from anabranch.model.autoscale.load import load_json
from anabranch.model.autoscale.policy import AutoScalePolicy

SUMMARY_DECISIONS = 10

Levels = tuple[AutoScalePolicy, Mapping[str, Any] | None, Mapping[str, Any] | None]
"""Of the broker, the namespace and the topic."""


def scaling_status(
    record: TopicRecord, scaler: TopicScaler, policy: AutoScalePolicy, decision: Decision, levels: Levels
) -> dict[str, Any]:
    broker, namespace, topic = levels
    return {
        "activeSegments": len(record.layout.active),
        "policy": policy.to_json(),
        "levels": {
            "broker": broker.to_json(),
            "namespace": None if namespace is None else dict(namespace),
            "topic": None if topic is None else dict(topic),
        },
        "lastSplitAtMs": record.last_split_at_ms,
        "lastMergeAtMs": record.last_merge_at_ms,
        "loads": {
            str(one.segment_id): load_json(scaler.loads[one.segment_id])
            for one in record.layout.active
            if one.segment_id in scaler.loads
        },
        "now": {**decision.to_json(), "dueAtMs": decision.due_at_ms},
        "decisions": [one.to_json() for one in reversed(scaler.history.decisions)],
    }


def scaling_summary(status: Mapping[str, Any]) -> dict[str, Any]:
    """What the stats of a topic show of it."""
    shown = {name: status[name] for name in ("policy", "loads", "now", "lastSplitAtMs", "lastMergeAtMs")}
    return {**shown, "decisions": status["decisions"][:SUMMARY_DECISIONS]}
