"""Which consumer of a Shared subscription collects a message that comes in chunks. Pure.

Only whoever has all chunks can put the message together, so the one that got the first gets the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

KNOWN_MAX = 10_000  # messages under way; beyond that the oldest are forgotten, and their rest goes to anybody


@dataclass(frozen=True, slots=True)
class Chunk:
    uuid: str  # of the message
    number: int
    count: int

    @property
    def is_last(self) -> bool:
        return self.number >= self.count - 1


class ChunkAffinity(Generic[T]):
    def __init__(self) -> None:
        self._owners: OrderedDict[str, T] = OrderedDict()

    def owner(self, chunk: Chunk) -> T | None:
        """Whose it is; None for a message that begins, and for one that nobody has the beginning of."""
        return None if chunk.number == 0 else self._owners.get(chunk.uuid)

    def delivered(self, chunk: Chunk, to: T) -> None:
        if chunk.is_last:
            self._owners.pop(chunk.uuid, None)
            return
        self._owners[chunk.uuid] = to
        if len(self._owners) > KNOWN_MAX:
            self._owners.popitem(last=False)

    def left(self, owner: T) -> None:
        for uuid in [uuid for uuid, one in self._owners.items() if one is owner]:
            del self._owners[uuid]

    def clear(self) -> None:
        self._owners.clear()
