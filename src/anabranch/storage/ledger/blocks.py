"""Buffers to read into, used again once nobody looks at their bytes any more. Lives on one thread.

Whoever reads hands out views of a block; a view keeps its block, and the block's reference count tells whether there is
one left. A fresh megabyte costs as much as reading it does: it is zeroed, and its pages come one fault at a time.
"""

from __future__ import annotations

from sys import getrefcount

_NOBODY = 3  # the pool's list, the loop below, and the argument of getrefcount itself


class BlockPool:
    def __init__(self, block_bytes: int, kept_max: int) -> None:
        """`kept_max`: so many blocks stay for the next reads; when all of them are in use there are others."""
        self.block_bytes = block_bytes
        self._kept_max = kept_max
        self._blocks: list[bytearray] = []

    def take(self) -> bytearray:
        """A block that nobody has a view of. What is in it is left over from others."""
        for block in self._blocks:
            if getrefcount(block) == _NOBODY:
                return block
        block = bytearray(self.block_bytes)
        if len(self._blocks) < self._kept_max:
            self._blocks.append(block)
        return block
