"""Members of ordered subscriptions that were closed on a segment: who was sent away does not come back first. Pure.

Its client attaches again by itself, and would be faster than the one whom the segment was given to. So its name is
barred until somebody else has come (then the segment is taken) or a while has passed (then it may be its turn again).
"""

from __future__ import annotations

BAR_SECONDS = 5.0


class Bars:
    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}  # (subscription, name of a consumer)

    def bar(self, subscription: str, names: set[str], now: float) -> None:
        self._until = {key: until for key, until in self._until.items() if until > now}
        for name in names:
            self._until[subscription, name] = now + BAR_SECONDS

    def is_barred(self, subscription: str, name: str, now: float) -> bool:
        return self._until.get((subscription, name), 0.0) > now

    def came(self, subscription: str) -> None:
        """Somebody who was not barred reads now."""
        if self._until:
            self._until = {key: until for key, until in self._until.items() if key[0] != subscription}
