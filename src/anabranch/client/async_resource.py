"""The result of `client.producer(…)` and the like: `await` it, or enter it with `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class AsyncResource(Generic[T]):
    """Nothing happens until it is awaited or entered. Leaving `async with` closes what was opened."""

    def __init__(self, opener: Callable[[], Awaitable[T]]) -> None:
        self._opener = opener
        self._value: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opener().__await__()

    async def __aenter__(self) -> T:
        self._value = await self._opener()
        return self._value

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._value is not None
        await self._value.close()
