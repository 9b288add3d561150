"""One subscription's position in a topic: acknowledgements in memory, and those of them that are not stored yet.

Acknowledging never waits. Changes are collected here; the topic's state log writes those of all cursors together. A
crash loses the latest changes, which causes redelivery, never loss of messages.

Message counts are absolute: `consumed_messages` counts from the first message that the topic ever had. The count stays
exact under individual acknowledgements. After a seek or a cumulative acknowledgement it is recounted from the index on
demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from anabranch.model.position import LATEST, Position
from anabranch.storage.cursor.ack_state import AckState, mask_of
from anabranch.storage.cursor.state_codec import CursorDelta, CursorProperties, CursorSaved, StateRecord
from anabranch.storage.ledger.ledger_chain import LedgerChain

_UNKNOWN = -1
_RECOUNTS_MAX = 3
_RUNS_MAX = 20_000  # with more runs of holes than this, a recount estimates their messages by the average


class CursorHost(Protocol):
    """What a cursor needs of its topic."""

    chain: LedgerChain

    def cursor_changed(self, cursor: Cursor) -> None:
        """A durable cursor has changes to be written; called once until they are written."""

    async def flush_state(self) -> None: ...

    async def messages_upto(self, p: Position) -> int:
        """Absolute number of the last message at or before p."""


class Cursor:
    __slots__ = (
        "_acked", "_consumed", "_host", "_is_dirty", "_partial", "_properties", "_properties_changed", "_was_reset",
        "durable", "name", "state",
    )  # fmt: skip

    def __init__(
        self,
        host: CursorHost,
        name: str,
        state: AckState,
        properties: Mapping[str, str],
        *,
        durable: bool = True,
        consumed_messages: int = _UNKNOWN,
    ) -> None:
        self._host = host
        self.name = name
        self.durable = durable
        self.state = state
        self._properties = dict(properties)
        self._consumed = consumed_messages
        self._is_dirty = False
        self._was_reset = False
        self._properties_changed = False
        self._acked: list[Position] = []
        self._partial: dict[Position, None] = {}

    @property
    def mark_delete(self) -> Position:
        return self.state.mark_delete

    @property
    def consumed_messages(self) -> int:
        """Messages acknowledged since the topic exists, as far as known without a recount."""
        return max(self._consumed, 0)

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    @properties.setter
    def properties(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)
        self._properties_changed = True
        self._changed()

    def is_acked(self, p: Position) -> bool:
        return self.state.is_acked(p)

    def is_untouched_from(self, p: Position) -> bool:
        return self.state.is_untouched_from(p)

    def ack_set(self, p: Position) -> tuple[int, ...] | None:
        return self.state.ack_set(p)

    def ack(self, p: Position, messages: int, words: Sequence[int] | None = None, batch_size: int = 0) -> bool:
        """Acknowledge one entry of `messages` messages (negative: not known), or with `words` some of them.

        True if the whole entry is acknowledged now.
        """
        if self.state.ack(p, words, batch_size):
            if messages < 0:
                self._consumed = _UNKNOWN
            elif self._consumed >= 0:
                self._consumed += messages
            if self.durable:
                self._acked.append(p)
                if not self._is_dirty:
                    self._changed()
            return True
        if words is not None and self.durable and not self.state.is_acked(p):
            self._partial[p] = None
            self._changed()
        return False

    def ack_cumulative(self, p: Position, messages_hint: int | None = None, words: Sequence[int] | None = None) -> None:
        """Acknowledge everything up to p. `messages_hint`: how many messages this newly acknowledges, if known."""
        before, holes = self.state.mark_delete, self.state.holes
        self.state.ack_up_to(p, words)
        if self.state.mark_delete != before:
            is_exact = messages_hint is not None and self._consumed >= 0 and not holes
            self._consumed = self._consumed + messages_hint if is_exact and messages_hint is not None else _UNKNOWN
        if words is not None and self.durable and not self.state.is_acked(p):
            self._partial[p] = None
        if words is not None or self.state.mark_delete != before:
            self._changed()

    def next_unacked(self, p: Position) -> Position:
        """First position >= p that is not acknowledged; one past the end if there is none."""
        return self.state.next_unacked(p)

    def first_unacked(self) -> Position:
        return self.state.next_unacked(self.state.mark_delete)

    def seek(self, next_to_read: Position) -> None:
        """Restart at a position (LATEST: after everything); all holes are dropped."""
        if next_to_read >= LATEST:
            next_to_read = self._host.chain.after(self._host.chain.last)
        self.state.reset(next_to_read)
        self._consumed = _UNKNOWN
        self._acked.clear()
        self._partial.clear()
        self._was_reset = True
        self._changed()

    def trimmed(self, upto: Position) -> None:
        """Entries up to here were dropped; a cursor that was before them continues after them."""
        if self.state.mark_delete < upto:
            self.state.ack_up_to(upto)
            self._consumed = _UNKNOWN
            self._changed()

    async def flush(self) -> None:
        """Wait until every acknowledgement made before this call is durable."""
        if self.durable:
            await self._host.flush_state()

    @property
    def backlog_entries(self) -> int:
        chain = self._host.chain
        return max(chain.entries - chain.ordinal(self.state.mark_delete) - self.state.holes, 0)

    @property
    def has_backlog(self) -> bool:
        return self.backlog_entries > 0

    async def backlog_messages(self) -> int:
        """Unacknowledged messages; partly acknowledged batches count fully."""
        consumed = self._consumed if self._consumed >= 0 else await self._recount()
        return max(self._host.chain.messages_ever - consumed, 0)

    async def _recount(self) -> int:
        """Count consumed messages from the index.

        The count is repeated if acknowledgements arrive meanwhile, but only a few times: under steady acknowledging the
        result is slightly old.
        """
        total = 0
        for _ in range(_RECOUNTS_MAX):
            seen = (self.state.mark_delete, self.state.holes)
            total = await self._host.messages_upto(seen[0])
            total += await self._messages_in_holes()
            if seen == (self.state.mark_delete, self.state.holes):
                self._consumed = total
                break
        return total

    async def _messages_in_holes(self) -> int:
        if not self.state.holes:
            return 0
        runs, total, entries = list(self.state.hole_runs()), 0, 0
        for ledger, first, count in runs[:_RUNS_MAX]:
            upto = await self._host.messages_upto(Position(ledger, first + count - 1))
            total += upto - await self._host.messages_upto(Position(ledger, first - 1))
            entries += count
        if len(runs) > _RUNS_MAX:
            total += round(total / entries * sum(count for _, _, count in runs[_RUNS_MAX:]))
        return total

    def _changed(self) -> None:
        if self.durable and not self._is_dirty:
            self._is_dirty = True
            self._host.cursor_changed(self)

    # what the state log writes

    def saved(self) -> CursorSaved:
        return CursorSaved(self.name, dict(self._properties), self.state.snapshot(), self._consumed)

    def forget_changes(self) -> None:
        """All changes of this cursor are written or about to be."""
        self._is_dirty = self._was_reset = self._properties_changed = False
        self._acked = []
        self._partial = {}

    def take_changes(self) -> list[StateRecord]:
        """Records of the changes since the last call."""
        if not self._is_dirty:
            return []
        records: list[StateRecord] = []
        if self._properties_changed:
            records.append(CursorProperties(self.name, dict(self._properties)))
        mark_delete = self.state.mark_delete
        acked = _runs(sorted({p for p in self._acked if p > mark_delete}))
        partial = tuple(
            (p.ledger, p.entry, mask_of(words))
            for p in sorted(self._partial)
            if p > mark_delete and (words := self.state.ack_set(p)) is not None
        )
        records.append(CursorDelta(self.name, mark_delete, self._consumed, self._was_reset, acked, partial))
        self.forget_changes()
        return records

    def apply(self, record: CursorDelta) -> None:
        """Apply a record during replay."""
        if record.was_reset:
            self.state.reset(Position(record.mark_delete.ledger, record.mark_delete.entry + 1))
        self.state.ack_up_to(record.mark_delete)
        for ledger, first, count in record.acked:
            self.state.ack_range(ledger, first, count)
        for ledger, entry, mask in record.partial:
            self.state.set_unacked(Position(ledger, entry), mask)
        self._consumed = record.consumed_messages

    def apply_properties(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)


def _runs(positions: list[Position]) -> tuple[tuple[int, int, int], ...]:
    """Ascending positions as (ledger, first, count)."""
    runs: list[tuple[int, int, int]] = []
    for ledger, entry in positions:
        if runs and runs[-1][0] == ledger and runs[-1][1] + runs[-1][2] == entry:
            runs[-1] = (ledger, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((ledger, entry, 1))
    return tuple(runs)
