"""One node on its own thread and event loop, so that blocking test code and blocking clients can use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from anabranch.node.settings.node import NodeSettings

START_SECONDS = 60.0
STOP_SECONDS = 60.0
DEFAULTS: Mapping[str, object] = {
    "network.host": "127.0.0.1",
    "network.port": 0,
    "http.host": "127.0.0.1",
    "http.port": 0,
    "storage.sync": "none",  # safe when the process is killed, not when the machine fails
}


class BrokerFailed(RuntimeError):
    """The broker in the test process did not start or did not stop."""


class Broker:
    """A real broker on free loopback ports, with its data in a temporary directory unless one is named.

    `settings` maps setting names ("broker.deduplication") to values. Nothing runs before `start` (or `with`). After
    `close`, another broker may open the same directory.
    """

    def __init__(self, directory: Path | str | None = None, *, settings: Mapping[str, object] | None = None) -> None:
        self._directory = None if directory is None else Path(directory)
        self._overrides = {**DEFAULTS, **(settings or {})}
        self._temporary: TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._urls: tuple[str, str] | None = None

    @property
    def service_url(self) -> str:
        """URL for clients of the binary protocol: pulsar://127.0.0.1:PORT."""
        return self._reachable()[0]

    @property
    def http_url(self) -> str:
        """URL of the admin REST API, and for clients that use HTTP lookups."""
        return self._reachable()[1]

    def _reachable(self) -> tuple[str, str]:
        if self._urls is None:
            raise BrokerFailed("the broker is not running: use `with Broker() as broker`, or call start()")
        return self._urls

    def start(self) -> Self:
        """Returns when both ports are open. Raises the error if the broker cannot start."""
        if self._thread is not None:
            raise BrokerFailed("the broker is already running")
        if self._directory is None:
            self._temporary = TemporaryDirectory(prefix="anabranch-")
        ready: Future[tuple[str, str]] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="anabranch-broker", daemon=True)
        self._thread.start()
        try:
            self._urls = ready.result(START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop cleanly: clients are notified, and all data is written. Safe to repeat."""
        thread, self._thread, self._urls = self._thread, None, None
        if thread is not None:
            if self._loop is not None and self._stop is not None and thread.is_alive():
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(STOP_SECONDS)
            if thread.is_alive():
                raise BrokerFailed(f"the broker did not stop within {STOP_SECONDS:.0f} s")
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- on the broker's thread

    def _run(self, ready: Future[tuple[str, str]]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[tuple[str, str]]) -> None:
        from anabranch.node.node import Node

        directory = self._directory or Path(self._temporary.name if self._temporary is not None else ".")
        async with Node(_node_settings(directory, self._overrides)) as node:
            self._stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            ready.set_result((node.service_url, node.http_url))
            await self._stop.wait()


def _node_settings(directory: Path, overrides: Mapping[str, object]) -> NodeSettings:
    from anabranch.node.settings.node import NodeSettings

    settings = NodeSettings()
    groups: dict[str, dict[str, Any]] = {"storage": {"dir": directory}}
    for name, value in overrides.items():
        group, dot, key = name.partition(".")
        known = getattr(settings, group, None) if dot else None
        if known is None or key not in known.__dataclass_fields__:
            raise ValueError(f"no such setting: {name!r}")
        groups.setdefault(group, {})[key] = value
    changed: dict[str, Any] = {group: replace(getattr(settings, group), **values) for group, values in groups.items()}
    return replace(settings, **changed)
