"""Base of the groups of admin calls: one request, one answer of the expected type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from anabranch.admin.client import Answer
from anabranch.admin.errors import Refused, StrangeAnswer

Query = Mapping[str, Any]
Names = list[str]  # aliases, because groups have a method `list`
Objects = list[dict[str, Any]]
NOT_FOUND, CONFLICT = 404, 409


class Exchange(Protocol):
    """Makes the requests."""

    async def call(self, method: str, path: str, body: Any = None, *, query: Query | None = None) -> Answer: ...


class Group:
    """Calls about one noun. Each raises AdminError: `Refused` has the broker's status, code and reason."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def _done(self, method: str, path: str, body: Any = None, query: Query | None = None) -> None:
        await self._exchange.call(method, path, body, query=query)

    async def _create(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Query | None = None,
        *,
        exist_ok: bool,
        proof: str,
        is_same: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """With `exist_ok` a conflict is fine if the answer to GET `proof` shows the wanted thing. Other conflicts are
        refused: another kind of thing may have the name."""
        try:
            await self._done(method, path, body, query)
        except Refused as refused:
            if not exist_ok or refused.status != CONFLICT or not await self._shows(proof, is_same):
                raise

    async def _shows(self, path: str, is_same: Callable[[Any], bool]) -> bool:
        try:
            return is_same(await self._value("GET", path))
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return False
            raise

    async def _value(self, method: str, path: str, body: Any = None, query: Query | None = None) -> Any:
        """The answer as JSON; None if it is empty."""
        return (await self._exchange.call(method, path, body, query=query)).value

    async def _text(self, method: str, path: str, query: Query | None = None) -> str:
        return (await self._exchange.call(method, path, query=query)).text

    async def _names(self, method: str, path: str, query: Query | None = None) -> Names:
        found = await self._value(method, path, query=query)
        if not isinstance(found, list):
            raise StrangeAnswer(f"{method} {path} answers {type(found).__name__}, not a list")
        return [str(one) for one in found]

    async def _objects(self, method: str, path: str, query: Query | None = None) -> Objects:
        found = await self._value(method, path, query=query)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise StrangeAnswer(f"{method} {path} does not answer a list of objects")
        return found

    async def _object(self, method: str, path: str, body: Any = None, query: Query | None = None) -> dict[str, Any]:
        found = await self._value(method, path, body, query)
        if not isinstance(found, dict):
            raise StrangeAnswer(f"{method} {path} answers {type(found).__name__}, not an object")
        return found

    async def _number(self, method: str, path: str, body: Any = None, query: Query | None = None) -> int:
        found = await self._value(method, path, body, query)
        if isinstance(found, bool) or not isinstance(found, int):
            raise StrangeAnswer(f"{method} {path} answers {type(found).__name__}, not a number")
        return found
