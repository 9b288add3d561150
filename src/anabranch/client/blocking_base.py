"""Common part of the blocking classes: the event loop thread, closing, and docstrings of the asyncio form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from anabranch.client.config import Seconds
from anabranch.client.errors import WrongThread
from anabranch.runtime.loop_thread import LoopThread

LOOP = LoopThread("anabranch-client", own_thread_error=WrongThread)
"""The event loop of all blocking clients of this process."""

B = TypeVar("B", bound="Blocking")
T = TypeVar("T")


def documented(asynchronous_form: type) -> Callable[[type[B]], type[B]]:
    """Gives the methods and properties of a blocking class the docstrings of the asyncio form."""

    def apply(blocking: type[B]) -> type[B]:
        for name, member in vars(blocking).items():
            if not name.startswith("_") and member.__doc__ is None:
                member.__doc__ = getattr(asynchronous_form, name).__doc__
        return blocking

    return apply


class Blocking:
    """Common part of the blocking classes: leaving `with` closes."""

    _inner: Any

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("<", "<Blocking", 1)

    def close(self, timeout: Seconds | None = None) -> None:
        """A producer waits for pending messages up to `timeout`, a consumer sends pending acks; a client closes all its
        producers and consumers. Safe to repeat."""
        LOOP.call(lambda: self._inner.close(timeout))

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return bool(self._inner.is_closed)


def on_loop(call: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """A plain function for `LOOP.call`, because what it reads changes on the loop's thread."""

    async def called() -> T:
        return call()

    return called
