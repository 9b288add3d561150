"""Lines of a file, a pipe or a terminal as they arrive, each without its end.

The event loop is not blocked by a pipe that has nothing to read: what was read is sent at once, receipts and signals
are served meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import BinaryIO

from anabranch.model.errors import BadRequest

BLOCK_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 << 20  # far above the largest message: memory stays bounded when the input has no lines


class LineSplitter:
    """Blocks of bytes in, whole lines out."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = b""

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that end in this block; BadRequest for one that is too long."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > self._line_bytes_max:
            raise BadRequest(f"a line of the input has more than {self._line_bytes_max:,} bytes")
        return [line.rstrip(b"\r") for line in lines]

    def end(self) -> list[bytes]:
        """A last line that has no end."""
        return [self._rest.rstrip(b"\r")] if self._rest else []


async def line_batches(file: BinaryIO) -> AsyncIterator[list[bytes]]:
    splitter = LineSplitter()
    async for block in _blocks(file):
        if lines := splitter.feed(block):
            yield lines
    if last := splitter.end():
        yield last


async def _blocks(file: BinaryIO) -> AsyncIterator[bytes]:
    try:
        descriptor = file.fileno()
    except OSError:  # not a file of the system
        while block := file.read(BLOCK_BYTES):
            yield block
        return
    waits = True
    while True:
        if waits:
            try:
                await _readable(descriptor)
            except PermissionError:  # a regular file can always be read, and cannot be waited for
                waits = False
        if not (block := os.read(descriptor, BLOCK_BYTES)):
            return
        yield block


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
