"""Keys of the port to keys of etcd and back. Pure.

A key is the store's prefix followed by the path, both UTF-8, so that `etcdctl get --prefix /x` shows the same tree.
Everything below a path is one range: from "path/" up to, not including, "path0" ("0" follows "/"). Bytes sort like code
points and a parent is a prefix of its children, so a range has parents first and sorted names.
"""

from __future__ import annotations

from anabranch.metadata.interface import RESERVED

Range = tuple[bytes, bytes]
EPOCH = f"{RESERVED}/epoch"


class Keyspace:
    """The keys of one store, below `prefix` ("" or a path)."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._cut = len(self._prefix)
        self.epoch = self.key(EPOCH)

    def key(self, path: str) -> bytes:
        return self._prefix + path.encode()

    def path(self, key: bytes) -> str | None:
        """None for a key that is not UTF-8, written by another program."""
        try:
            return key[self._cut :].decode()
        except UnicodeDecodeError:
            return None

    def below(self, tree: str) -> Range:
        """The range below `tree` (as `check_tree` returns it), without the tree's own key."""
        start = self._prefix + tree.encode()
        return start + b"/", start + b"0"

    def unreserved(self) -> tuple[Range, ...]:
        """Everything but the reserved key and all below it."""
        begin, end = self.below("")
        reserved = self.key(RESERVED)
        inner, behind = self.below(RESERVED)
        return (begin, reserved), (reserved + b"\0", inner), (behind, end)


def after(key: bytes) -> bytes:
    """The smallest key after this one."""
    return key + b"\0"
