"""Pulsar's classic Java client (from the jars of 5.0.0-M1) as a driver for tests of messages without a value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.services import cache, jvm

_PROGRAM = "V4Driver"
_WITHIN_S = 90.0

Keyed = tuple[str, bytes | None]
"""Key and value."""


class V4Error(Exception):
    """The exception of the Java client, as text."""


def obtain() -> Path:
    return jvm.obtain("pulsar-v5", cache.BUILDS / "pulsar_v5", _PROGRAM)


class V4Client:
    def __init__(self, service_url: str, log_path: Path) -> None:
        self._jvm = jvm.Jvm(obtain(), _PROGRAM, [service_url], log_path, _WITHIN_S)

    def send(self, topic: str, messages: Sequence[Keyed], *, is_batched: bool) -> None:
        words = [word for key, value in messages for word in (key, "null" if value is None else f"={value.decode()}")]
        self._ask("send", topic, "batched" if is_batched else "single", *words)

    def take(self, topic: str, subscription: str, count: int) -> list[Keyed]:
        """Fewer if none arrived for half a minute."""
        found = self._ask("take", topic, subscription, str(count))
        return [
            (key, None if value == "null" else value.removeprefix("=").encode())
            for key, value in zip(found[::2], found[1::2], strict=True)
        ]

    def close(self) -> None:
        self._jvm.close()

    def _ask(self, *words: str) -> list[str]:
        verdict, *answer = self._jvm.ask(words)
        if verdict != "ok":
            raise V4Error(" ".join(answer))
        return answer
