"""Splits a byte stream into frames. Looks at sizes only; `commands` and `entry` decode the content.

    | totalSize 4 | commandSize 4 | command | payload … |      totalSize counts everything after itself

The decoder fits `asyncio.BufferedProtocol`: `buffer()` says where to receive, `received(n)` returns the frames that are
complete now. Bytes arrive in a *scratch* buffer that all connections of one loop may share, because nothing else runs
between the two calls. An incomplete rest is kept aside (less than 16 KiB; nothing on an idle connection). A larger
incomplete frame gets its own buffer and is received directly into it.

While large frames arrive quickly, `block_bytes` asks for reads as new `bytes` objects (`received_block`), because
frames need not be copied out of these. Only blocks that are nearly full are handed out, so that few bytes never hold
much memory.

A connection that can take many SENDs at once sets `take_run`, which is offered each SEND first.

Ownership: command and payload are views. With `owned` they may be kept. Otherwise they are views of the scratch buffer
and become invalid with the next `buffer()` of any connection that shares it: copy what must live longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple, NoReturn

from anabranch.protocol.errors import BadFrame, FrameTooLarge, ProtocolError

MESSAGE_BYTES_MAX = 5 * 1024 * 1024
FRAME_OVERHEAD_MAX = 10_240
SCRATCH_BYTES = 16 * 1024
OWN_BUFFER_BYTES = 16 * 1024  # an incomplete frame longer than this gets its own buffer
BLOCK_BYTES = 256 * 1024
LARGE_FRAME_BYTES = 4 * 1024  # copying smaller ones costs less than keeping blocks
GROWTH = 4  # own buffer: at most this many times the bytes received, so that an announced size alone costs little

SEND_TYPE = 6  # second byte of a SEND command as all clients write it
_U32 = Struct(">I")
_SIZES = Struct(">II")


class Frame(NamedTuple):
    """One frame. `payload` is everything after the command; None if there is nothing."""

    command: memoryview
    payload: memoryview | None
    owned: bool


TakeRun = Callable[[memoryview, int, int, bool, int], tuple[int, int]]
"""(view, start, end, owned, frame_bytes_max) to (start of the rest, number of frames taken); may take none."""


class FrameDecoder:
    """Any chunking of the same bytes gives the same frames, then the same error. After an error it cannot be used."""

    __slots__ = (
        "_carry", "_error", "_frame_bytes_max", "_is_rapid", "_own", "_own_above", "_own_filled", "_own_total",
        "_scratch", "take_run",
    )  # fmt: skip

    def __init__(self, frame_bytes_max: int, scratch: bytearray | None = None) -> None:
        scratch = bytearray(SCRATCH_BYTES) if scratch is None else scratch
        assert len(scratch) >= 16, "a scratch buffer must hold at least the sizes of a frame"
        self._frame_bytes_max = frame_bytes_max
        self._scratch = memoryview(scratch)
        self._own_above = min(OWN_BUFFER_BYTES, len(scratch))
        self._is_rapid = False  # large frames arrive quickly
        self._carry = b""  # the beginning of an incomplete small frame
        self._own: memoryview | None = None  # the beginning of an incomplete large frame …
        self._own_filled = 0  # … of which this much has arrived …
        self._own_total = 0  # … and which will be this long
        self._error: ProtocolError | None = None
        self.take_run: TakeRun | None = None

    def buffer(self) -> memoryview:
        """Where to receive the next bytes; never empty. Invalidates views that are not `owned`."""
        if self._error is not None:
            raise self._error
        if self._own is not None:
            return self._own[self._own_filled :]
        carry = self._carry
        if not carry:
            return self._scratch
        size = len(carry)
        self._scratch[:size] = carry
        return self._scratch[size:]

    def received(self, count: int) -> Iterator[Frame]:
        """The frames completed by `count` bytes now in `buffer()`; raises ProtocolError after the last sound frame.

        The iterator must be exhausted before the next `buffer()`; after an abandoned one the decoder cannot be used.
        """
        if self._error is not None:
            raise self._error
        # Set until the iterator is exhausted, because its rest would be overwritten by other connections.
        self._error = BadFrame("frames were left undecoded")
        if self._own is not None:
            return self._received_own(count)
        return self._received_scratch(len(self._carry) + count)

    @property
    def block_bytes(self) -> int:
        """If > 0, the next bytes should be received as a `bytes` object of up to this size."""
        return BLOCK_BYTES if self._is_rapid and self._own is None and self._error is None else 0

    def received_block(self, block: bytes) -> Iterator[Frame]:
        """`received` for bytes that were not received into `buffer()`."""
        if self._error is not None:
            raise self._error
        self._error = BadFrame("frames were left undecoded")
        return self._received_block(block)

    def allow(self, frame_bytes_max: int) -> None:
        """Set another limit from the next bytes on: a small one before authentication, a larger one after it."""
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """For tests and small tools: bytes in, owned frames out, at the cost of a copy."""
        rest = memoryview(data)
        while rest.nbytes:
            room = self.buffer()
            count = min(room.nbytes, rest.nbytes)
            room[:count] = rest[:count]
            rest = rest[count:]
            for frame in self.received(count):
                yield frame if frame.owned else _copied(frame)

    def _received_scratch(self, end: int) -> Iterator[Frame]:
        return self._frames_of(self._scratch, 0, end, False)

    def _received_block(self, block: bytes) -> Iterator[Frame]:
        view, carry, start = memoryview(block), self._carry, 0
        if carry:
            self._carry = b""
            head = carry + block[:8]
            # A frame that is still incomplete is handled like any other; rare, because blocks are larger than carries.
            start = _U32.unpack_from(head)[0] + 4 - len(carry) if len(head) >= 8 else len(block) + 1
            if start > len(block):
                view, start = memoryview(carry + block), 0
            else:
                first = memoryview(carry + block[: max(start, 0)])
                yield from self._frames_of(first, 0, first.nbytes, True)
                self._error = BadFrame("frames were left undecoded")
        yield from self._frames_of(view, max(start, 0), view.nbytes, len(block) * 4 >= BLOCK_BYTES * 3)

    def _frames_of(self, view: memoryview, start: int, end: int, owned: bool) -> Iterator[Frame]:
        limit = self._frame_bytes_max
        unpack = _SIZES.unpack_from
        new_frame = tuple.__new__  # same as Frame(…), at half the cost
        first, count, take = start, 0, self.take_run
        while end - start >= 8:
            if take is not None and end - start > 10 and view[start + 9] == SEND_TYPE:
                start, taken = take(view, start, end, owned, limit)
                if taken:
                    count += taken
                    continue
            total, command_bytes = unpack(view, start)
            after = start + 4 + total
            if total + 4 > limit:
                self._fail(FrameTooLarge(total + 4, limit))
            if command_bytes + 4 > total:
                self._fail(BadFrame(f"command of {command_bytes} bytes in a frame of {total}"))
            if after > end:
                break
            body = start + 8 + command_bytes
            yield new_frame(Frame, (view[start + 8 : body], view[body:after] if body < after else None, owned))
            start = after
            count += 1
        self._error = None
        if count:
            self._is_rapid = start - first >= max(count * LARGE_FRAME_BYTES, BLOCK_BYTES // 2)
        self._keep(view[start:end])

    def _received_own(self, count: int) -> Iterator[Frame]:
        own = self._own
        assert own is not None
        filled = self._own_filled = self._own_filled + count
        if filled >= 8:
            self._check_sizes(own)
        if filled < self._own_total:
            if filled == own.nbytes:
                self._grow(own, filled)
            self._error = None
            return
        self._own = None
        command_bytes = _U32.unpack_from(own, 4)[0]
        body = 8 + command_bytes
        yield Frame(own[8:body], own[body:] if body < own.nbytes else None, True)
        self._error = None

    def _keep(self, rest: memoryview) -> None:
        """Keep an incomplete frame, in its own buffer if it will be large."""
        size = rest.nbytes
        if size >= 4:
            total = _U32.unpack_from(rest)[0] + 4
            if total > self._frame_bytes_max:
                self._fail(FrameTooLarge(total, self._frame_bytes_max))
            if total < 8:
                self._fail(BadFrame(f"frame of {total} bytes has no room for a command"))
            if total > self._own_above:
                self._own_total = total
                self._carry = b""
                self._grow(rest, size)
                return
        self._carry = bytes(rest) if size else b""

    def _grow(self, old: memoryview, filled: int) -> None:
        size = min(self._own_total, max(GROWTH * filled, OWN_BUFFER_BYTES))
        own = memoryview(bytearray(size))
        own[:filled] = old[:filled]
        self._own, self._own_filled = own, filled

    def _check_sizes(self, view: memoryview) -> None:
        total, command_bytes = _SIZES.unpack_from(view)
        if command_bytes + 4 > total:
            self._fail(BadFrame(f"command of {command_bytes} bytes in a frame of {total}"))

    def _fail(self, error: ProtocolError) -> NoReturn:
        self._error = error
        self._carry, self._own = b"", None
        raise error


def _copied(frame: Frame) -> Frame:
    payload = None if frame.payload is None else memoryview(bytes(frame.payload))
    return Frame(memoryview(bytes(frame.command)), payload, True)
