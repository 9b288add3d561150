"""Settings of scalable topics. Validated once, at start.

Namespaces override retention (`retention_policies`), auto-creation (`autoTopicCreationOverride`) and, through their
`scalableTopicAutoScalePolicy`, everything that is a field of `AutoScalePolicy`; a topic's `autoScalePolicy` overrides
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.model.autoscale.policy import JSON_NAMES, AutoScalePolicy, BadPolicy
from anabranch.model.layout import LayoutLimits
from anabranch.runtime.settings import SettingsError, require_all

WEEK_MINUTES = 7 * 24 * 60


def _as_pulsar(default: Any, text: str, name: str) -> Any:
    """A setting that Pulsar's broker.conf has under this name."""
    return field(default=default, metadata={"help": f"{text} (Pulsar: {name})"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalableTopicsSettings:
    enabled: bool = field(default=True, metadata={"help": "serve topic:// names"})
    migration_enabled: bool = field(
        default=True, metadata={"help": "regular topics may be migrated to scalable topics (kill switch)"}
    )
    session_grace_seconds: float = field(
        default=60.0, metadata={"help": "a stream consumer without a connection keeps its segments for this long"}
    )
    create_seconds: float = field(
        default=30.0, metadata={"help": "a split or merge is aborted when its children do not exist after this"}
    )
    seal_seconds: float = field(default=10.0, metadata={"help": "time for one answer of a segment's owner"})
    drain_seconds: float = field(
        default=30.0, metadata={"help": "a consumer that does not release a segment within this time is closed there"}
    )
    call_seconds: float = field(
        default=45.0, metadata={"help": "time after which an administrative call is answered, finished or not"}
    )
    retention_minutes: int = field(
        default=WEEK_MINUTES,
        metadata={"help": "sealed segments are kept for this long after they were read; -1 = for ever"},
    )
    retention_mb: int = field(
        default=-1, metadata={"help": "read segments beyond this size are deleted earlier; -1 = no limit"}
    )
    max_segments: int = _as_pulsar(64, "active segments of one topic", "scalableTopicMaxSegments")
    max_dag_depth: int = _as_pulsar(10, "merges among the ancestors of a segment", "scalableTopicMaxDagDepth")
    auto_create_segments: int = field(default=1, metadata={"help": "segments of a topic that is created on first use"})
    entry_bucket_budget: int = _as_pulsar(
        1,
        "entry buckets of a new topic, shared by its segments; with more than one, stream consumers with "
        'fan_out="auto" can share a segment',
        "scalableTopicEntryBucketBudget",
    )
    max_consumers: int = field(default=10_000, metadata={"help": "consumers of one ordered subscription"})
    sweep_seconds: float = field(default=60.0, metadata={"help": "interval of garbage collection of segments"})
    idle_seconds: float = field(
        default=60.0, metadata={"help": "the controller of an unused topic is unloaded after this"}
    )

    auto_scale_enabled: bool = _as_pulsar(
        True,
        "split and merge topics automatically, unless their policy says otherwise",
        "scalableTopicAutoScaleEnabled",
    )
    auto_scale_interval_seconds: float = _as_pulsar(
        60.0,
        "every led topic is evaluated at least this often; events evaluate it at once",
        "scalableTopicAutoScaleIntervalSeconds",
    )
    min_segments: int = _as_pulsar(1, "automatic merges leave this many active segments", "scalableTopicMinSegments")
    split_cooldown_seconds: int = _as_pulsar(
        60, "pause of automatic splits after a split of the topic", "scalableTopicSplitCooldownSeconds"
    )
    merge_cooldown_seconds: int = _as_pulsar(
        300, "pause of automatic merges after a merge of the topic", "scalableTopicMergeCooldownSeconds"
    )
    merge_window_seconds: int = _as_pulsar(
        300,
        "segments are merged after being below all merge thresholds for this long",
        "scalableTopicMergeWindowSeconds",
    )
    split_msg_rate_in_threshold: float = _as_pulsar(
        10_000.0, "a segment with more messages/s in is split", "scalableTopicSplitMsgRateInThreshold"
    )
    split_bytes_rate_in_threshold: int = _as_pulsar(
        50_000_000, "a segment with more bytes/s in is split", "scalableTopicSplitBytesRateInThreshold"
    )
    split_msg_rate_out_threshold: float = _as_pulsar(
        50_000.0, "a segment with more messages/s out is split", "scalableTopicSplitMsgRateOutThreshold"
    )
    split_bytes_rate_out_threshold: int = _as_pulsar(
        250_000_000, "a segment with more bytes/s out is split", "scalableTopicSplitBytesRateOutThreshold"
    )
    merge_msg_rate_in_threshold: float = _as_pulsar(
        1_000.0, "segments with fewer messages/s in may be merged; 0 = never", "scalableTopicMergeMsgRateInThreshold"
    )
    merge_bytes_rate_in_threshold: int = _as_pulsar(
        5_000_000, "segments with fewer bytes/s in may be merged; 0 = never", "scalableTopicMergeBytesRateInThreshold"
    )
    merge_msg_rate_out_threshold: float = _as_pulsar(
        5_000.0, "segments with fewer messages/s out may be merged; 0 = never", "scalableTopicMergeMsgRateOutThreshold"
    )
    merge_bytes_rate_out_threshold: int = _as_pulsar(
        25_000_000,
        "segments with fewer bytes/s out may be merged; 0 = never",
        "scalableTopicMergeBytesRateOutThreshold",
    )
    split_rate_window_seconds: int = field(
        default=60, metadata={"help": "rates of this window decide on splits; below 60 those of the last 5 s"}
    )
    split_factor_max: int = field(default=2, metadata={"help": "a hot segment is split into at most this many parts"})
    split_point: str = field(
        default="midpoint", metadata={"help": "automatic splits cut at: midpoint (equal width) or load (equal load)"}
    )
    merge_factor_max: int = field(default=2, metadata={"help": "an automatic merge takes at most this many segments"})
    hot_key_share: float = field(
        default=0.5, metadata={"help": "a key with this share of its segment's load is reported as hot"}
    )
    load_report_age_max_seconds: int = field(
        default=120, metadata={"help": "a load report counts for this long after the segment's owner is gone"}
    )
    load_report_interval_seconds: float = field(
        default=10.0,
        metadata={"help": "owners look this often for a changed load; a crossed threshold is reported at once"},
    )
    load_report_change: float = field(
        default=0.25, metadata={"help": "a rate is reported when it has changed by this share"}
    )
    load_report_hot_keys: bool = field(
        default=True,
        metadata={"help": "a hot key is reported with its text, which may be personal data; false: with its hash only"},
    )

    def __post_init__(self) -> None:
        require_all(
            (self.session_grace_seconds >= 0, "scalable_topics.session_grace_seconds", "0 or more"),
            (self.create_seconds > 0, "scalable_topics.create_seconds", "greater than 0"),
            (self.seal_seconds > 0, "scalable_topics.seal_seconds", "greater than 0"),
            (self.drain_seconds > 0, "scalable_topics.drain_seconds", "greater than 0"),
            (self.call_seconds > 0, "scalable_topics.call_seconds", "greater than 0"),
            (self.retention_minutes >= -1, "scalable_topics.retention_minutes", "-1 or more"),
            (self.retention_mb >= -1, "scalable_topics.retention_mb", "-1 or more"),
            (1 <= self.max_segments <= 65_536, "scalable_topics.max_segments", "between 1 and 65536"),
            (self.max_dag_depth >= 0, "scalable_topics.max_dag_depth", "0 or more"),
            (
                1 <= self.auto_create_segments <= self.max_segments,
                "scalable_topics.auto_create_segments",
                "between 1 and scalable_topics.max_segments",
            ),
            (1 <= self.entry_bucket_budget <= 1024, "scalable_topics.entry_bucket_budget", "between 1 and 1024"),
            (self.max_consumers >= 1, "scalable_topics.max_consumers", "at least 1"),
            (self.sweep_seconds > 0, "scalable_topics.sweep_seconds", "greater than 0"),
            (self.idle_seconds > 0, "scalable_topics.idle_seconds", "greater than 0"),
            (self.auto_scale_interval_seconds > 0, "scalable_topics.auto_scale_interval_seconds", "greater than 0"),
            (self.load_report_interval_seconds >= 1, "scalable_topics.load_report_interval_seconds", "at least 1"),
            (self.load_report_change > 0, "scalable_topics.load_report_change", "greater than 0"),
        )
        try:
            _ = self.auto_scale_policy
        except BadPolicy as error:
            raise SettingsError([f"scalable_topics: {error.reason}"]) from error

    @property
    def auto_scale_policy(self) -> AutoScalePolicy:
        """The broker's level of the policy; the settings have the names of its fields."""
        override = {
            name: getattr(self, "auto_scale_enabled" if one == "enabled" else one) for name, one in JSON_NAMES.items()
        }
        return AutoScalePolicy().overridden(override)

    def limits(self, *policies: Mapping[str, Any] | None) -> LayoutLimits:
        """Limits after auto-scale policies, the most specific first; fields that they do not set come from here."""

        def first(name: str, default: int) -> int:
            found = (policy[name] for policy in policies if policy and policy.get(name) is not None)
            return int(next(found, default))

        return LayoutLimits(first("maxSegments", self.max_segments), first("maxDagDepth", self.max_dag_depth))
