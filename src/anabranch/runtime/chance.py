"""Chance as a port: the only place that may draw random numbers; everything else is handed a `Chance`."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Chance(Protocol):
    """A seeded `random.Random` is one, too."""

    def random(self) -> float:
        """At least 0, less than 1."""


class SystemChance:
    """The operating system's numbers: no two processes draw alike."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def random(self) -> float:
        return self._source.random()


def secret_bytes(count: int) -> bytes:
    """For keys: nobody can guess them, and no seed brings them back."""
    return secrets.token_bytes(count)
