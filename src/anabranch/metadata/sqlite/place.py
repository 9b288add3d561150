"""Where a key lies in the tables of the embedded store, worked out once: keys are written again and again."""

from __future__ import annotations

from functools import lru_cache

from anabranch.metadata.interface import ChangeKind, check_key
from anabranch.metadata.sqlite.event_log import Told, told

KEY_CHARS_KEPT = 256  # do not ask for longer ones: the memory has a bound
PLACES_KEPT = 8192

Place = tuple[str, str, Told]
"""parent, name, and the change that a put by version makes. Plain tuples: this is the hot path."""


@lru_cache(PLACES_KEPT)
def place_of(key: str) -> Place:
    """Raises BadKey unless the key can hold a value."""
    check_key(key)
    parent, _, name = key.rpartition("/")
    return parent, name, told(ChangeKind.MODIFIED, key)
