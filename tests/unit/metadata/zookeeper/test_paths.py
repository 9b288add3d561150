"""Keys to ZooKeeper paths and back: accepted by the server, unambiguous, ordinary names unchanged; the URL."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.metadata.interface import RESERVED, UnknownStore
from anabranch.metadata.open import open_store
from anabranch.metadata.zookeeper.address import parse_url
from anabranch.metadata.zookeeper.paths import DEPTH_MAX, MARK, PathMapping, escape
from anabranch.runtime.clock import SystemClock
from anabranch.zookeeper.address import Server

names = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6),
    st.text(alphabet=f".%2Fe{MARK};a\x01\U0001f40d", min_size=1, max_size=8),
    st.sampled_from([".", "..", "...", "zookeeper", ".meta", f"{MARK}2e;", f"{MARK}2f;", "%2F"]),
)
keys = st.lists(names, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
deep_keys = st.lists(names, min_size=DEPTH_MAX - 2, max_size=DEPTH_MAX + 6).map(lambda parts: "/" + "/".join(parts))
chroots = st.sampled_from(["", "/c", "/c/d"])
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def is_taken(path: str) -> bool:
    """The server's check, on Java's UTF-16 characters."""
    units = path.encode("utf-16-be", "surrogatepass")
    characters = "".join(chr(int.from_bytes(units[i : i + 2], "big")) for i in range(0, len(units), 2))
    parts = path.split("/")[1:]
    return FORBIDDEN.search(characters) is None and not {"", ".", ".."}.intersection(parts)


@given(keys | deep_keys, chroots)
@example("/zookeeper/quota", "")
@example("/" + "x/" * 4095 + "x", "/c")
@example("/\x7f\x80\x9f\ue000\uffff\U0010ffff", "")
def test_every_key_maps_to_an_accepted_path_and_back(key: str, chroot: str) -> None:
    places = PathMapping(chroot)
    path = places.path(key)
    assert is_taken(path)
    assert not path.startswith("/zookeeper/") and path != "/zookeeper"
    assert places.key(path) == key
    assert path.startswith(chroot)
    assert path.count("/") <= DEPTH_MAX + chroot.count("/")


@given(keys | deep_keys, keys | deep_keys, chroots)
def test_two_keys_never_share_a_path(one: str, two: str, chroot: str) -> None:
    places = PathMapping(chroot)
    assert (places.path(one) == places.path(two)) == (one == two)


@given(st.lists(names, min_size=1, max_size=4), chroots)
def test_foreign_path_maps_to_its_key_or_to_none(parts: list[str], chroot: str) -> None:
    places = PathMapping(chroot)
    path = chroot + "/" + "/".join(parts)
    key = places.key(path)
    if key is not None and is_taken(path):
        assert places.path(key) == path


@pytest.mark.parametrize(
    "key", ["/topics/a", "/%2F%20", "/a b/ü/日本", "/a.b/.c/...", RESERVED + "/x", "/~!@#$^&*()'\"\\", "/\u00a0"]
)
def test_ordinary_names_are_unchanged(key: str) -> None:
    assert escape(key) == key
    assert PathMapping("/c").path(key) == f"/c{key}"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("/a\x01", f"/a{MARK}1;"),
        ("/..", f"/{MARK}2e;{MARK}2e;"),
        ("/🐍", f"/{MARK}1f40d;"),
        (f"/{MARK}", f"/{MARK}241b;"),
    ],
)
def test_forbidden_names_are_escaped(key: str, path: str) -> None:
    assert PathMapping("").path(key) == path


@pytest.mark.parametrize("path", ["/other/a", "/cx", "/c\u241b", f"/c/{MARK}61;", f"/c/{MARK}", f"/c/{MARK}ffffff;"])
def test_foreign_paths_are_not_keys(path: str) -> None:
    assert PathMapping("/c").key(path) is None


def test_the_root() -> None:
    assert (PathMapping("").path(""), PathMapping("").root, PathMapping("").key("/")) == ("/", "/", "")
    assert (PathMapping("/c").path(""), PathMapping("/c").root, PathMapping("/c").key("/c")) == ("/c", "/c", "")
    assert PathMapping("").is_hidden("/zookeeper") and PathMapping("").is_hidden("/.meta")
    assert PathMapping("/c").is_hidden("/c/.meta") and not PathMapping("/c").is_hidden("/c/zookeeper")


def test_parents() -> None:
    places = PathMapping("/c/d")
    assert places.parents("/c/d/a/b") == ["/c", "/c/d", "/c/d/a"]
    assert places.parent("/c/d/a/b") == "/c/d/a"
    assert places.parent("/c/d/a") is None
    assert PathMapping("").parent("/a") is None


@pytest.mark.parametrize(
    ("url", "servers", "chroot"),
    [
        ("//h:1", [("h", 1)], ""),
        ("//h", [("h", 2181)], ""),
        ("//h:1,127.0.0.1:2,[::1]:3,[::2]/a/b", [("h", 1), ("127.0.0.1", 2), ("::1", 3), ("::2", 2181)], "/a/b"),
        ("//h:1/", [("h", 1)], ""),
        ("//h:1/a/", [("h", 1)], "/a"),
    ],
)
def test_urls(url: str, servers: list[tuple[str, int]], chroot: str) -> None:
    assert parse_url(url) == ([Server(*one) for one in servers], chroot)
    assert open_store(f"zk:{url}", SystemClock()).capabilities.name == "zookeeper"


@pytest.mark.parametrize(
    "url",
    [
        "zk:",
        "zk:h:1",
        "zk:/h:1",
        "zk://",
        "zk:///a",
        "zk://h:",
        "zk://h:x",
        "zk://h:0",
        "zk://h:65536",
        "zk://h:-1",
        "zk://:1",
        "zk://h:1,",
        "zk://h:1,,g:2",
        "zk://u@h:1",
        "zk://[::1",
        "zk://[::1]x",
        "zk://h:1//a",
        "zk://h:1/a//b",
        "zk://h:1/a/../b",
        "zk://h:1/\x01",
        "zk://h:1/zookeeper",
        "zk://h:1/zookeeper/a",
    ],
)
def test_bad_urls_are_refused_with_the_form(url: str) -> None:
    with pytest.raises(UnknownStore) as caught:
        open_store(url, SystemClock())
    assert "zk://" in str(caught.value) or "ZooKeeper" in str(caught.value)
