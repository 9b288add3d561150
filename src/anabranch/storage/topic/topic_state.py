"""State of a topic besides its entries: cursors and small named blobs, all stored in the topic's state log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from anabranch.model.errors import AlreadyExists, Error
from anabranch.model.position import Position
from anabranch.storage.cursor.ack_state import AckState
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_codec import BlobSaved, CursorDeleted, CursorSaved
from anabranch.storage.cursor.state_log import StateLog
from anabranch.storage.cursor.state_replay import Replay
from anabranch.storage.ledger.ledger_chain import LedgerChain
from anabranch.storage.topic.topic_reader import TopicReader


class TopicState:
    """Implements `CursorHost` for the cursors of one topic."""

    def __init__(
        self,
        name: str,
        chain: LedgerChain,
        state_log: StateLog,
        cursors: dict[str, Cursor],
        blobs: dict[str, bytes],
        *,
        reader: TopicReader,
        check_owner: Callable[[], None],
        check_usable: Callable[[], None],
    ) -> None:
        """`cursors` and `blobs` are shared with `state_log`, which writes them into snapshots.

        `check_owner` raises Fenced if the topic has another owner; `check_usable` also raises if the topic is closed.
        """
        self._name = name
        self.chain = chain
        self._state_log = state_log
        self._cursors = cursors
        self._blobs = blobs
        self.messages_upto = reader.messages_upto
        self._check_owner = check_owner
        self._check_usable = check_usable

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return MappingProxyType(self._cursors)

    def restore(self, replayed: Replay) -> None:
        """Set the state that was read from the state ledgers when the topic was opened."""
        self._cursors.update(replayed.cursors)
        self._blobs.update(replayed.blobs)

    def cursor_of(self, saved: CursorSaved) -> Cursor:
        state = AckState(self.chain)
        state.restore(saved.acks)
        return Cursor(self, saved.name, state, saved.properties, consumed_messages=saved.consumed_messages)

    async def create_cursor(
        self, name: str, next_to_read: Position, properties: Mapping[str, str], durable: bool = True
    ) -> Cursor:
        """A cursor whose first entry is `next_to_read` (may be EARLIEST or LATEST); durable when this returns."""
        self._check_usable()
        if name in self._cursors:
            raise AlreadyExists(f"cursor {name} exists on {self._name}")
        cursor = Cursor(self, name, AckState(self.chain), properties, durable=durable)
        cursor.seek(next_to_read)
        self._cursors[name] = cursor
        if durable:
            cursor.forget_changes()
            self._state_log.add(cursor.saved())
            try:
                await self._state_log.flush()
            except Error:
                self._cursors.pop(name, None)
                self._state_log.add(CursorDeleted(name))
                raise
        return cursor

    async def create_cursors(self, starts: Mapping[str, Position]) -> None:
        """Create durable cursors with one write; existing ones keep their position. Durable when this returns."""
        self._check_usable()
        made = [name for name in starts if name not in self._cursors]
        for name in made:
            cursor = self._cursors[name] = Cursor(self, name, AckState(self.chain), {})
            cursor.seek(starts[name])
            cursor.forget_changes()
            self._state_log.add(cursor.saved())
        try:
            await self._state_log.flush()
        except Error:
            for name in made:
                self._cursors.pop(name, None)
                self._state_log.add(CursorDeleted(name))
            raise

    async def delete_cursor(self, name: str) -> None:
        """The deletion is durable when this returns. An unknown name is no error."""
        cursor = self._cursors.pop(name, None)
        if cursor is not None and cursor.durable:
            self._state_log.add(CursorDeleted(name))
            await self._state_log.flush()

    def cursor_changed(self, cursor: Cursor) -> None:
        self._state_log.cursor_changed(cursor)

    async def flush_state(self) -> None:
        self._check_owner()
        await self._state_log.flush()

    def state(self, key: str) -> bytes | None:
        return self._blobs.get(key)

    def save_state_nowait(self, key: str, value: bytes) -> None:
        """Set a blob; it is written with the next flush of the topic's state."""
        self._blobs[key] = value
        self._state_log.add(BlobSaved(key, value))

    async def save_state(self, key: str, value: bytes) -> None:
        """Set a blob; durable when this returns."""
        self._check_usable()
        self.save_state_nowait(key, value)
        await self._state_log.flush()

    def skip_damaged(self, p: Position) -> None:
        """Acknowledge a damaged entry on all cursors; otherwise it would hold back their mark-delete for ever."""
        for cursor in self._cursors.values():
            if not cursor.is_acked(p):
                cursor.ack(p, 0)
