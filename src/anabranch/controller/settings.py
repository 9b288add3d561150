"""Settings of scalable topics. Validated once, at start.

Namespaces override retention (`retention_policies`), auto-creation (`autoTopicCreationOverride`) and, through their
`scalableTopicAutoScalePolicy`, `maxSegments` and `maxDagDepth`; a topic's own `autoScalePolicy` overrides that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from anabranch.model.autoscale.policy import AutoScalePolicy, BadPolicy
from anabranch.model.layout import LayoutLimits
from anabranch.runtime.settings import SettingsError, require_all

WEEK_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalableTopicsSettings:
    enabled: bool = field(default=True, metadata={"help": "serve topic:// names"})
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
    max_segments: int = field(default=64, metadata={"help": "active segments of one topic"})
    max_dag_depth: int = field(default=10, metadata={"help": "merges among the ancestors of a segment"})
    auto_create_segments: int = field(default=1, metadata={"help": "segments of a topic that is created on first use"})
    max_consumers: int = field(default=10_000, metadata={"help": "consumers of one ordered subscription"})
    sweep_seconds: float = field(default=60.0, metadata={"help": "interval of garbage collection of segments"})
    idle_seconds: float = field(
        default=60.0, metadata={"help": "the controller of an unused topic is unloaded after this"}
    )

    auto_scale_enabled: bool = field(
        default=False,
        metadata={"help": "split and merge topics automatically, unless their policy says otherwise"},
    )
    auto_scale_interval_seconds: float = field(
        default=60.0, metadata={"help": "every led topic is evaluated at least this often; events evaluate it at once"}
    )
    min_segments: int = field(default=1, metadata={"help": "automatic merges leave this many active segments"})
    split_cooldown_seconds: int = field(
        default=60, metadata={"help": "pause of automatic splits after a split of the topic"}
    )
    merge_cooldown_seconds: int = field(
        default=300, metadata={"help": "pause of automatic merges after a merge of the topic"}
    )
    merge_window_seconds: int = field(
        default=300, metadata={"help": "segments are merged after being below all merge thresholds for this long"}
    )
    split_msg_rate_in_threshold: float = field(
        default=10_000.0, metadata={"help": "a segment with more messages/s in is split"}
    )
    split_bytes_rate_in_threshold: int = field(
        default=50_000_000, metadata={"help": "a segment with more bytes/s in is split"}
    )
    split_msg_rate_out_threshold: float = field(
        default=50_000.0, metadata={"help": "a segment with more messages/s out is split"}
    )
    split_bytes_rate_out_threshold: int = field(
        default=250_000_000, metadata={"help": "a segment with more bytes/s out is split"}
    )
    merge_msg_rate_in_threshold: float = field(
        default=1_000.0, metadata={"help": "segments with fewer messages/s in may be merged; 0 = never"}
    )
    merge_bytes_rate_in_threshold: int = field(
        default=5_000_000, metadata={"help": "segments with fewer bytes/s in may be merged; 0 = never"}
    )
    merge_msg_rate_out_threshold: float = field(
        default=5_000.0, metadata={"help": "segments with fewer messages/s out may be merged; 0 = never"}
    )
    merge_bytes_rate_out_threshold: int = field(
        default=25_000_000, metadata={"help": "segments with fewer bytes/s out may be merged; 0 = never"}
    )
    split_rate_window_seconds: int = field(
        default=60, metadata={"help": "rates of this window decide on splits; below 60 those of the last 5 s"}
    )
    split_factor_max: int = field(default=2, metadata={"help": "a hot segment is split into at most this many parts"})
    load_report_interval_seconds: float = field(
        default=10.0,
        metadata={"help": "owners look this often for a changed load; a crossed threshold is reported at once"},
    )
    load_report_change: float = field(
        default=0.25, metadata={"help": "a rate is reported when it has changed by this share"}
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
        """The broker's level of the policy."""
        named = {one: getattr(self, one) for one in _POLICY_FIELDS}
        return AutoScalePolicy(enabled=self.auto_scale_enabled, **named)

    def limits(self, *policies: Mapping[str, Any] | None) -> LayoutLimits:
        """Limits after auto-scale policies, the most specific first; fields that they do not set come from here."""

        def first(name: str, default: int) -> int:
            found = (policy[name] for policy in policies if policy and policy.get(name) is not None)
            return int(next(found, default))

        return LayoutLimits(first("maxSegments", self.max_segments), first("maxDagDepth", self.max_dag_depth))


_POLICY_FIELDS = tuple(
    one.name
    for one in fields(AutoScalePolicy)
    if one.name != "enabled" and one.name in {own.name for own in fields(ScalableTopicsSettings)}
)
