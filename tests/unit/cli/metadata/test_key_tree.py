"""Keys as a tree for people."""

from __future__ import annotations

from anabranch.cli.metadata.key_tree import (
    Facts,
    facts_line,
    facts_of,
    grow,
    lines_of,
    moment,
    objects_of,
    value_text,
)
from anabranch.metadata.interface import Versioned


def record(value: bytes = b"", *, ephemeral: bool = False) -> Facts:
    return facts_of(Versioned(value, 7, 1_600_000_000_000, 1_700_000_000_000, ephemeral))


def test_branches() -> None:
    top = grow("/", [("/b", record()), ("/a/x/1", record()), ("/a/x", record()), ("/a/y", record())])
    assert lines_of(top, columns=False) == ["/", "├─ a", "│  ├─ x", "│  │  └─ 1", "│  └─ y", "└─ b"]
    assert [one["key"] for one in objects_of(top)] == ["/", "/a", "/a/x", "/a/x/1", "/a/y", "/b"]
    assert [one["has_value"] for one in objects_of(top)] == [False, False, True, True, True, True]


def test_a_tree_below_a_key() -> None:
    top = grow("/a/b", [("/a/b", record()), ("/a/b/c", record())])
    assert lines_of(top, columns=False) == ["/a/b", "└─ c"]
    assert [one["key"] for one in objects_of(top)] == ["/a/b", "/a/b/c"]


def test_columns() -> None:
    _, line = lines_of(grow("/a", [("/a", record(b"xyz", ephemeral=True))]), columns=True)
    assert line.split() == ["/a", "7", "2020-09-13T12:26:40Z", "2023-11-14T22:13:20Z", "3", "yes"]
    assert facts_line(record(b"xyz", ephemeral=True)) == "version 7, 3 bytes, 2023-11-14T22:13:20Z, ephemeral"


def test_unknown_times_are_blank() -> None:
    assert moment(0) == "-"
    assert moment(10**18) == f"{10**18} ms"


def test_nothing_disturbs_the_terminal() -> None:
    assert value_text(b"a\x1b[2J\nb\tc\n") == "a\\x1b[2J\nb\tc"


def test_values() -> None:
    assert value_text(b'{"a":{"b":[]}}') == '{\n  "a": {\n    "b": []\n  }\n}'
    assert value_text(b" 12\n") == "12"
    assert value_text(b"[" * 100_000) == "[" * 100_000
    assert value_text(b"\xff\x00") == "ff 00"
    assert value_text(b"\xff" * 513).splitlines()[-1] == "… and 1 bytes more; --raw writes them all"
