"""Traffic of a segment while the load reporter has no meter for it. Values only."""

from __future__ import annotations

from typing import NamedTuple


class Unmetered(NamedTuple):
    """Counters of a segment when its load was last measured."""

    totals: tuple[int, int, int, int]  # messages in, bytes in, messages out, bytes out
    is_idle: bool  # there was no traffic for a whole window; otherwise the time before is unknown


LOADED = Unmetered((0, 0, 0, 0), is_idle=False)
"""Of a segment that was just loaded."""
