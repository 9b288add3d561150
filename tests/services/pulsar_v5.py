"""Pulsar's V5 client (Java, 5.0.0-M1 from Maven) as a driver for interoperability tests."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from tests.services import cache, jvm

_PROGRAM = "V5Driver"
_WITHIN_S = 90.0

Keyed = tuple[str, str]
"""Key and value."""


class V5Error(Exception):
    """The exception of the Java client, as text."""


def obtain() -> Path:
    return jvm.obtain("pulsar-v5", cache.BUILDS / "pulsar_v5", _PROGRAM)


class V5Client:
    """Producers and consumers have names; every call returns when the Java call has."""

    def __init__(self, service_url: str, log_path: Path) -> None:
        self._jvm = jvm.Jvm(obtain(), _PROGRAM, [service_url], log_path, _WITHIN_S)

    def __call__(self, *words: str) -> list[str]:
        self._jvm.tell(words)
        return self._outcome()

    def producer(self, name: str, topic: str) -> None:
        self("producer", name, topic)

    def stream(self, name: str, topic: str, subscription: str, consumer: str) -> None:
        self("stream", name, topic, subscription, consumer)

    def queue(self, name: str, topic: str, subscription: str) -> None:
        self("queue", name, topic, subscription)

    def checkpoint(self, name: str, topic: str, start: str | None = None) -> None:
        """`start` is the result of `save`; None starts at the earliest message."""
        self("checkpoint", name, topic, *(() if start is None else (start,)))

    def send(self, name: str, messages: list[Keyed]) -> None:
        """Send one after another, each after the previous one is stored."""
        self("send", name, *chain.from_iterable(messages))

    def begin_pipe(self, name: str, messages: list[Keyed]) -> None:
        """Send all at once; `finish` waits until they are stored. Messages that the client dropped at a layout change
        before sending them are sent again, as an application would (see `pipe` of the driver)."""
        self._jvm.tell(("pipe", name, *chain.from_iterable(messages)))

    def finish(self) -> None:
        self._outcome()

    def take(self, name: str, count: int, patience_ms: int = 10_000) -> list[Keyed]:
        """Up to `count` messages, acknowledged; fewer if none arrived for `patience_ms`."""
        found = self("take", name, str(count), str(patience_ms))
        return list(zip(found[::2], found[1::2], strict=True))

    def save(self, name: str) -> str:
        return self("save", name)[0]

    def end(self, name: str) -> None:
        self("close", name)

    @property
    def alive(self) -> bool:
        """False if it did not answer in time and must be replaced."""
        return self._jvm.alive

    def close(self) -> None:
        self._jvm.close()

    def _outcome(self) -> list[str]:
        verdict, *words = self._jvm.answer()
        if verdict != "ok":
            raise V5Error(" ".join(words))
        return words
