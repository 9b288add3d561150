"""Pulsar's own V5 client (Java, 5.0.0-M1 from Maven) as a driver for tests of interoperability.

Knows how to get and drive it; knows nothing of the broker it talks to but a URL.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from tests.services import cache, jvm

_PROGRAM = "V5Driver"
_WITHIN_S = 90.0

Keyed = tuple[str, str]
"""Key and value."""


class V5Error(Exception):
    """What the Java client threw, as text."""


def obtain() -> Path:
    return jvm.obtain("pulsar-v5", cache.BUILDS / "pulsar_v5", _PROGRAM)


class V5Client:
    """Producers and consumers live under names; every call answers when the Java call has."""

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
        """`start`: what `save` gave; None: from the earliest message on."""
        self("checkpoint", name, topic, *(() if start is None else (start,)))

    def send(self, name: str, messages: list[Keyed]) -> None:
        """One after another, each when the one before is stored."""
        self("send", name, *chain.from_iterable(messages))

    def begin_pipe(self, name: str, messages: list[Keyed]) -> None:
        """All at once; `finish` waits until they are stored. What the client gave up or forgot at a change of the
        layout, before it sent it, is sent again, as its application would (the driver's `pipe` says which)."""
        self._jvm.tell(("pipe", name, *chain.from_iterable(messages)))

    def finish(self) -> None:
        self._outcome()

    def take(self, name: str, count: int, patience_ms: int = 10_000) -> list[Keyed]:
        """Up to `count`, acknowledged; fewer when nothing came for so long."""
        found = self("take", name, str(count), str(patience_ms))
        return list(zip(found[::2], found[1::2], strict=True))

    def save(self, name: str) -> str:
        return self("save", name)[0]

    def end(self, name: str) -> None:
        self("close", name)

    @property
    def alive(self) -> bool:
        """False when it did not answer in time: then another one must be started."""
        return self._jvm.alive

    def close(self) -> None:
        self._jvm.close()

    def _outcome(self) -> list[str]:
        verdict, *words = self._jvm.answer()
        if verdict != "ok":
            raise V5Error(" ".join(words))
        return words
