"""In which topics something has happened: whoever looks at topics at times looks at these, and leaves the idle alone.

To note one costs what a set costs (`note` is its own `add`), so it may stand where messages pass. Each view is told
everything, at its own pace. Knows nothing of topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class ActivityTracker(Generic[T]):
    def __init__(self) -> None:
        self._marked: set[T] = set()
        self._views: list[set[T]] = []
        self.mark: Callable[[T], None] = self._marked.add
        self.mark_all: Callable[[Iterable[T]], None] = self._marked.update

    def view(self) -> View[T]:
        """From now on."""
        seen: set[T] = set()
        self._share()
        self._views.append(seen)
        return View(self._share, seen)

    def _share(self) -> None:
        if self._marked:
            for seen in self._views:
                seen |= self._marked
            self._marked.clear()


class View(Generic[T]):
    def __init__(self, share: Callable[[], None], seen: set[T]) -> None:
        self._share = share
        self._seen = seen

    def take(self) -> set[T]:
        """What was noted since the last time."""
        self._share()
        taken = set(self._seen)
        self._seen.clear()
        return taken
