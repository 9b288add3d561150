"""Values that a topic log reports for stats, metrics and the console."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.model.position import Position


@dataclass(frozen=True, slots=True)
class LedgerStats:
    id: int
    entries: int
    messages: int
    bytes: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class CursorStats:
    name: str
    is_durable: bool
    mark_delete: Position
    backlog_entries: int
    holes: int  # entries acknowledged above the mark-delete position


@dataclass(frozen=True, slots=True)
class TopicLogStats:
    ledgers: tuple[LedgerStats, ...]
    cursors: tuple[CursorStats, ...]
    state_ledgers: tuple[int, ...]
    entries: int
    messages: int
    bytes: int
    trimmed_messages: int
    corrupt_entries: int
    last_position: Position
    created_ms: int  # 0: created by a version that did not record it
    is_terminated: bool
