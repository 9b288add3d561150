"""Names for producers and consumers that bring none, and for stored schemas.

Names are unique for ever, because deduplication and takeover go by name. The prefix is new at every start of a broker.
"""

from __future__ import annotations

from itertools import count


class NameGenerator:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = count()

    def producer(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def consumer(self) -> str:
        return f"{self._prefix}-c{next(self._numbers)}"

    def schema(self) -> str:
        """The key of one schema definition."""
        return f"{self._prefix}-s{next(self._numbers)}"
