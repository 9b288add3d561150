"""Who has left without a word. Pulsar's clients have none for leaving: one that has closed its readers of all segments
it was given is gone. Knows links by number and segments by id; decides, does nothing, and must not know why they close.

Closing comes as a hint of the segment's owner, also where a client merely lets go of what was taken from it. So what
is given to it anew counts as not closed, and what it does not have says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable


class ImplicitLeaveDetector:
    def __init__(self) -> None:
        self._given: dict[int, frozenset[int]] = {}
        self._closed: dict[int, set[int]] = {}

    def given(self, link: int, segment_ids: Iterable[int]) -> None:
        """The complete list of what it has now."""
        now, before = frozenset(segment_ids), self._given.get(link, frozenset())
        self._given[link] = now
        if link in self._closed:
            self._closed[link] &= now & before

    def closed(self, link: int, segment_id: int) -> bool:
        """It closed its reader there. True: that was the last one, it is gone."""
        given = self._given.get(link, frozenset())
        if segment_id not in given:
            return False  # it was taken from it
        closed = self._closed.setdefault(link, set())
        closed.add(segment_id)
        return closed >= given

    def forget(self, link: int) -> None:
        self._given.pop(link, None)
        self._closed.pop(link, None)
