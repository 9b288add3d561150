"""What a topic keeps beside its entries: cursors, and small named blobs. All of it is in the topic's state log.

Knows nothing of appending and reading, only the chain that positions are found in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from anabranch.model.errors import AlreadyExists, Error
from anabranch.model.position import Position
from anabranch.storage.cursor.ack_state import AckState
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_codec import BlobSaved, CursorDeleted, CursorSaved
from anabranch.storage.cursor.state_log import StateLog
from anabranch.storage.interface import StorageError
from anabranch.storage.ledger.ledger_chain import LedgerChain
from anabranch.storage.topic.ownership import TopicOwnership


class TopicState(ABC):
    """One half of `TopicLog`; its cursors live with the whole."""

    _state: StateLog
    """Where it is written; made by who opens the topic."""

    def __init__(self, name: str, chain: LedgerChain, owner: TopicOwnership) -> None:
        self.name = name
        self.chain = chain
        self._owner = owner
        self._cursors: dict[str, Cursor] = {}
        self._blobs: dict[str, bytes] = {}
        self._is_closed = False

    @abstractmethod
    async def messages_upto(self, p: Position) -> int: ...

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return MappingProxyType(self._cursors)

    def _cursor_of(self, saved: CursorSaved) -> Cursor:
        state = AckState(self.chain)
        state.restore(saved.acks)
        return Cursor(self, saved.name, state, saved.properties, consumed_messages=saved.consumed_messages)

    async def create_cursor(
        self, name: str, next_to_read: Position, properties: Mapping[str, str], durable: bool = True
    ) -> Cursor:
        """A cursor whose first entry is `next_to_read` (EARLIEST and LATEST too); durable when this returns."""
        self._check_usable()
        if name in self._cursors:
            raise AlreadyExists(f"cursor {name} exists on {self.name}")
        cursor = Cursor(self, name, AckState(self.chain), properties, durable=durable)
        cursor.seek(next_to_read)
        self._cursors[name] = cursor
        if durable:
            cursor.forget_changes()
            self._state.add(cursor.saved())
            try:
                await self._state.flush()
            except Error:
                self._cursors.pop(name, None)
                self._state.add(CursorDeleted(name))
                raise
        return cursor

    async def create_cursors(self, starts: Mapping[str, Position]) -> None:
        """Durable cursors, all with one write; those that exist stay where they are. Durable when this returns."""
        self._check_usable()
        made = [name for name in starts if name not in self._cursors]
        for name in made:
            cursor = self._cursors[name] = Cursor(self, name, AckState(self.chain), {})
            cursor.seek(starts[name])
            cursor.forget_changes()
            self._state.add(cursor.saved())
        try:
            await self._state.flush()
        except Error:
            for name in made:
                self._cursors.pop(name, None)
                self._state.add(CursorDeleted(name))
            raise

    async def delete_cursor(self, name: str) -> None:
        """Gone for good when this returns; absent is fine."""
        cursor = self._cursors.pop(name, None)
        if cursor is not None and cursor.durable:
            self._state.add(CursorDeleted(name))
            await self._state.flush()

    def cursor_changed(self, cursor: Cursor) -> None:
        self._state.cursor_changed(cursor)

    async def flush_state(self) -> None:
        self._owner.check()
        await self._state.flush()

    def state(self, key: str) -> bytes | None:
        return self._blobs.get(key)

    def save_state_nowait(self, key: str, value: bytes) -> None:
        """Written with the next flush of the topic's state."""
        self._blobs[key] = value
        self._state.add(BlobSaved(key, value))

    async def save_state(self, key: str, value: bytes) -> None:
        """Durable when it returns."""
        self._check_usable()
        self.save_state_nowait(key, value)
        await self._state.flush()

    def _give_up(self, p: Position) -> None:
        """A damaged entry reaches nobody: it must not hold a cursor, and so its ledger, back for ever."""
        for cursor in self._cursors.values():
            if not cursor.is_acked(p):
                cursor.ack(p, 0)

    def _check_usable(self) -> None:
        self._owner.check()
        if self._is_closed:
            raise StorageError(f"{self.name} is closed")
