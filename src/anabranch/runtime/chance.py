"""Port for random numbers. Only this module draws them; all other code gets a `Chance`."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Chance(Protocol):
    """A seeded `random.Random` fits this protocol."""

    def random(self) -> float:
        """At least 0, less than 1."""


class SystemChance:
    """Random numbers of the operating system, different in every process."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def random(self) -> float:
        return self._source.random()


def secret_bytes(count: int) -> bytes:
    """Secret bytes for keys: not predictable, and not reproducible by a seed."""
    return secrets.token_bytes(count)
