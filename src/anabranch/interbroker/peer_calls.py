"""Calls that this broker serves for the other brokers of its cluster, declared on the methods that serve them.

    class TopicMaintenance:
        @peer_call("care.trim")
        async def trim(self, topic: str) -> None: ...

Arguments and results are plain JSON values. The name and the names of the parameters are on the wire. They stay when
the method is renamed, because brokers of two versions may be in one cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.model.errors import NotFound

TOPICS = "topics"
"""Argument of a call that is made for many topics at once, in place of `topic`."""

Method = Callable[..., Awaitable[Any]]
M = TypeVar("M", bound=Method)
_MARK = "__peer_call__"


@dataclass(frozen=True, slots=True)
class PeerCall:
    name: str  # on the wire: group and call
    is_idempotent: bool  # may be repeated when it is unknown whether it was done


def peer_call(name: str, *, idempotent: bool = True) -> Callable[[M], M]:
    """Marks an async method as one that other brokers may call."""

    def mark(method: M) -> M:
        setattr(method, _MARK, PeerCall(name, idempotent))
        return method

    return mark


def peer_call_of(method: Method) -> PeerCall:
    found = getattr(method, _MARK, None)
    assert isinstance(found, PeerCall), f"{method} is not marked with @peer_call"
    return found


class PeerCalls:
    """All peer calls of this broker, by their name on the wire."""

    def __init__(self, *services: object) -> None:
        self._methods: dict[str, Method] = {}
        for service in services:
            self.add(service)

    def add(self, service: object) -> None:
        """Every method of `service` that is marked with `@peer_call`."""
        for attribute, function in _functions(type(service)).items():
            call = getattr(function, _MARK, None)
            if isinstance(call, PeerCall):
                assert call.name not in self._methods, f"peer call {call.name} is declared twice"
                self._methods[call.name] = getattr(service, attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._methods

    async def serve(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """NotFound for an undeclared name. With `topics`: one call for each, results in their order."""
        method = self._methods.get(name)
        if method is None:
            raise NotFound(f"no peer call {name}")
        if TOPICS not in arguments:
            return await method(**arguments)
        shared = {key: value for key, value in arguments.items() if key != TOPICS}
        calls = (method(topic=topic, **shared) for topic in arguments[TOPICS])
        return results_of(await asyncio.gather(*calls, return_exceptions=True))


def _functions(kind: type) -> dict[str, Any]:
    return {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}


def results_of(outcomes: Sequence[Any]) -> list[Any]:
    """The outcomes of `gather(…, return_exceptions=True)`; raises the first failure, after all have ended."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return list(outcomes)
