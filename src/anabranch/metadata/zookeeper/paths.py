"""Keys of the port to paths of ZooKeeper and back. Pure.

ZooKeeper forbids control characters, surrogates and the private use area (so all characters beyond 16 bits, which Java
stores as surrogates), the last few of the basic plane, and the names "." and "..". Such characters become `␛HEX;`.
Other names, also with percent signs, are unchanged, so that other tools show the same tree. The escape is injective:
the mark itself is escaped too.

Parts beyond the 40th share one node, with their slashes escaped: for every change ZooKeeper looks up watches on each
path above it, with time and memory quadratic in the depth. Creating a key of 4,000 parts took 40 s.
"""

from __future__ import annotations

import re

from anabranch.metadata.interface import RESERVED

MARK = "\u241b"  # ␛
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff\u241b]")
_ESCAPED = re.compile("\u241b([0-9a-f]{1,6});")
_DOTS = re.compile(r"(?:^|(?<=/))\.\.?(?=/|$)")
DEPTH_MAX = 40
_SYSTEM = "zookeeper"  # the server's own node below the root


def escape(text: str) -> str:
    """A path or a name that ZooKeeper accepts."""
    if text.isascii() and text.isprintable() and "/." not in text and not text.startswith("."):
        return text
    text = _FORBIDDEN.sub(lambda found: _escaped(found[0]), text)
    return _DOTS.sub(lambda found: "".join(map(_escaped, found[0])), text)


def _escaped(character: str) -> str:
    return f"{MARK}{ord(character):x};"


class PathMapping:
    """Maps the keys of one store to paths below `chroot` ("" or "/a/b") and back."""

    def __init__(self, chroot: str) -> None:
        self.chroot = chroot
        self.root = chroot or "/"
        self.reserved = self.path(RESERVED)

    def path(self, key: str) -> str:
        """Path of a key, or of "" (the root of the tree)."""
        path = escape(key)
        if path.count("/") > DEPTH_MAX:
            parts = path.split("/")
            path = "/".join([*parts[:DEPTH_MAX], _escaped("/").join(parts[DEPTH_MAX:])])
        if not self.chroot:
            if path == f"/{_SYSTEM}" or path.startswith(f"/{_SYSTEM}/"):
                return f"/{_escaped(path[1])}{path[2:]}"
            return path or "/"
        return self.chroot + path

    def key(self, path: str) -> str | None:
        """ "" for the root of the tree; None for a path that is not a key of this store."""
        chroot = self.chroot
        if not chroot:
            if path == "/":
                return ""
            if path == f"/{_SYSTEM}" or path.startswith(f"/{_SYSTEM}/"):
                return None
        elif not path.startswith(chroot):
            return None
        key = path[len(chroot) :]
        if key and key[0] != "/":
            return None
        if MARK not in key:
            return key
        plain = _ESCAPED.sub(_character, key)
        return plain if self.path(plain) == path else None

    def listing_node(self, tree: str) -> str:
        """The node whose children contain the keys below `tree`; where nodes are shared, other keys too."""
        return self.path("/".join(tree.split("/", DEPTH_MAX)[:DEPTH_MAX]) if self.is_shared(tree) else tree)

    def is_shared(self, tree: str) -> bool:
        """True beyond the depth limit, where keys below `tree` are siblings of its node."""
        return tree.count("/") >= DEPTH_MAX

    def is_hidden(self, path: str) -> bool:
        """A child of the root that listings of the root leave out: the reserved key and the server's own node."""
        return path == self.reserved or (not self.chroot and path == f"/{_SYSTEM}")

    def parents(self, path: str) -> list[str]:
        """All nodes above `path`, the top one first, including those of the chroot."""
        parts = path.split("/")
        return ["/".join(parts[:end]) for end in range(2, len(parts))]

    def parent(self, path: str) -> str | None:
        """The node above; None directly below the root of the store."""
        above = path.rpartition("/")[0]
        return above if len(above) > len(self.chroot) else None


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if number < 0x110000 else found[0]


def child_path(path: str, name: str) -> str:
    """The path of a child, from its name as the server lists it."""
    return f"/{name}" if path == "/" else f"{path}/{name}"
