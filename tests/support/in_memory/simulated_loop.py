"""An event loop whose time jumps to the next timer whenever nothing is ready.

Hours pass in milliseconds, `asyncio.timeout` included, and the same program takes the same course every time. No
threads, no sockets: with nothing ready and no timer left the program can never continue, and that is an error.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from anabranch.runtime.clock import Timer

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("deadlock: nothing is ready and no timer is set")
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def jump(self, seconds: float) -> None:
        """The whole process stood still for so long: no timer has fired meanwhile."""
        self._jumping.now += seconds


class LoopClock:
    """A `Clock` that reads the running simulated loop; wall-clock time starts in 2001."""

    def now_ms(self) -> int:
        return 1_000_000_000_000 + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
