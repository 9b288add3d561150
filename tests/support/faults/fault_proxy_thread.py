"""Fault proxies for blocking tests: they run on an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.faults.fault_proxy import HOST, FaultProxy

T = TypeVar("T")


class ProxyThread:
    """One proxy per added port. `do` runs a function with every proxy, on their loop."""

    def __init__(self) -> None:
        self._proxies: list[FaultProxy] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxies", daemon=True)

    @property
    def addresses(self) -> list[str]:
        return [f"{HOST}:{proxy.port}" for proxy in self._proxies]

    def add(self, target_port: int) -> int:
        """Add a proxy and return its port."""
        proxy = self._run(self._open(target_port))
        self._proxies.append(proxy)
        return proxy.port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.do(lambda proxy: proxy.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, act: Callable[[FaultProxy], Awaitable[None] | None]) -> None:
        async def all_of_them() -> None:
            for proxy in self._proxies:
                doing = act(proxy)
                if doing is not None:
                    await doing

        self._run(all_of_them())

    async def _open(self, target_port: int) -> FaultProxy:
        return await FaultProxy(target_port).__aenter__()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
