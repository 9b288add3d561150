"""Settings of the schema registry: defaults of the namespace policies, and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.model.schema import Strategy
from anabranch.runtime.settings import require_all

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSettings:
    compatibility_strategy: str = field(
        default="FULL", metadata={"help": "of namespaces that set none; Pulsar's names, for example BACKWARD"}
    )
    auto_update: bool = field(default=True, metadata={"help": "producers and first consumers may add versions"})
    validation_enforced: bool = field(
        default=False, metadata={"help": "a topic with a schema takes no producer without one, everywhere"}
    )
    bytes_max: int = field(default=512 * KIB, metadata={"help": "largest definition"})
    versions_max: int = field(default=1_000, metadata={"help": "versions of one topic"})

    def __post_init__(self) -> None:
        names = [name for name in Strategy if name is not Strategy.UNDEFINED]
        require_all(
            (self.compatibility_strategy in names, "schemas.compatibility_strategy", f"one of {', '.join(names)}"),
            (KIB <= self.bytes_max <= 512 * KIB, "schemas.bytes_max", "between 1 KiB and 512 KiB"),
            (1 <= self.versions_max <= 5_000, "schemas.versions_max", "between 1 and 5000"),
        )

    @property
    def strategy(self) -> Strategy:
        return Strategy(self.compatibility_strategy)
