"""Set of topics with activity. Periodic tasks (sweep, rate sampling) visit only these and skip idle topics.

Marking costs as much as adding to a set (`mark` is `set.add`), so the message path can afford it. Each view returns
every mark once, at its own pace.
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
        """A view of everything marked from now on."""
        seen: set[T] = set()
        self._share()
        self._views.append(seen)
        return View(self._share, seen)

    def forget(self, one: T) -> None:
        """It is gone: no view returns it any more."""
        self._marked.discard(one)
        for seen in self._views:
            seen.discard(one)

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
        """What was marked since the last call."""
        self._share()
        taken = set(self._seen)
        self._seen.clear()
        return taken
