"""Settings of scalable topics: whether there are any, and how long what they hold is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.broker.policies import MIB, MINUTE_MS, Retention
from anabranch.runtime.settings import require_all

WEEK_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalableTopicSettings:
    enabled: bool = field(default=True, metadata={"help": "serve topic:// names; off: they are refused"})
    retention_minutes: int = field(
        default=WEEK_MINUTES, metadata={"help": "what is consumed is kept so long, unless the namespace says; -1: ever"}
    )
    retention_mb: int = field(default=-1, metadata={"help": "… and up to this size; -1: any, 0: nothing"})

    def __post_init__(self) -> None:
        require_all(
            (self.retention_minutes >= -1, "scalable_topics.retention_minutes", "-1 or more"),
            (self.retention_mb >= -1, "scalable_topics.retention_mb", "-1 or more"),
        )

    @property
    def retention(self) -> Retention:
        minutes, mib = self.retention_minutes, self.retention_mb
        return Retention(minutes * MINUTE_MS if minutes >= 0 else -1, mib * MIB if mib >= 0 else -1)
