"""The names below each key, updated as keys are added and removed. Pure."""

from __future__ import annotations

from collections.abc import Iterator


class KeyTree:
    """Keys as a tree of names. A name exists while it, or anything below it, is a key."""

    def __init__(self) -> None:
        self._below: dict[str, dict[str, int]] = {}  # tree → name → number of keys at or below it

    def add(self, key: str) -> None:
        for tree, name in _steps(key):
            names = self._below.setdefault(tree, {})
            names[name] = names.get(name, 0) + 1

    def remove(self, key: str) -> None:
        for tree, name in _steps(key):
            names = self._below[tree]
            names[name] -= 1
            if not names[name]:
                del names[name]
                if not names:
                    del self._below[tree]

    def names(self, tree: str) -> list[str]:
        return sorted(self._below.get(tree, ()))

    def walk(self, tree: str) -> Iterator[str]:
        """Every path below `tree`, parents before children; also those that only lead to a key."""
        todo = [f"{tree}/{name}" for name in reversed(self.names(tree))]
        while todo:
            path = todo.pop()
            yield path
            if path in self._below:
                todo += [f"{path}/{name}" for name in reversed(self.names(path))]


def _steps(key: str) -> Iterator[tuple[str, str]]:
    """Each (tree, name) on the way from the root to the key."""
    while key:
        key, _, name = key.rpartition("/")
        yield key, name
