"""Chunk-to-consumer affinity of a Shared subscription. Pure.

A consumer needs all chunks to assemble a message, so the consumer of the first chunk receives the others.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

KNOWN_MAX = 10_000  # incomplete messages; the chunks of older ones go to any consumer


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
        """The consumer that has the first chunk; None for a first chunk, and if no consumer has it."""
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
