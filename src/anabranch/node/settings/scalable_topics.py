"""Settings of scalable topics: those of the controllers, and the retention that follows for storage."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.broker.catalog.policies import MIB, MINUTE_MS, Retention
from anabranch.controller.settings import ScalableTopicsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalableTopicSettings(ScalableTopicsSettings):
    @property
    def retention(self) -> Retention:
        minutes, mib = self.retention_minutes, self.retention_mb
        return Retention(minutes * MINUTE_MS if minutes >= 0 else -1, mib * MIB if mib >= 0 else -1)
