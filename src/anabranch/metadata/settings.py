"""Where metadata lives. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    url: str | None = field(
        default=None, metadata={"help": "memory: or sqlite:///DIR; empty = SQLite in the data directory"}
    )
