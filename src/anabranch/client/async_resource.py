"""The result of `client.producer(…)` and the like: `await` it, or enter it with `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from anabranch.client.errors import NotAwaited


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class AsyncResource(Generic[T]):
    """Nothing happens until it is awaited or entered. Leaving `async with` closes what was opened."""

    def __init__(self, opener: Callable[[], Awaitable[T]], call: str, name: str) -> None:
        """`call` and `name` are for error texts: the call that made it, and a name for its result."""
        self._opener = opener
        self._call = call
        self._name = name
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

    def __repr__(self) -> str:
        return f"<{self._call}, not open: await it, or enter it with async with>"

    if not TYPE_CHECKING:  # type checkers find these mistakes themselves

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # copy, pickle and others look for optional methods
                raise AttributeError(name)
            raise self._mistake(f"`{name}` of it is used")

        def __enter__(self) -> NoReturn:
            raise self._mistake("`with` is used instead of `async with`")

        def __exit__(self, kind: object, error: object, trace: object) -> None:
            """Never called, but Python looks for it."""

        def __aiter__(self) -> NoReturn:
            raise self._mistake("`async for` reads from it")

    def _mistake(self, what: str) -> NotAwaited:
        call, name = self._call, self._name
        return NotAwaited(
            f"{call} is not open, but {what}; write `async with {call} as {name}:` or `{name} = await {call}`"
        )
