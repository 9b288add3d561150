"""Loading settings: layers, conversions, and one report for all complaints."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from anabranch.runtime.settings import (
    Layer,
    SettingsError,
    env_layer,
    file_layer,
    load,
    reference,
    require,
    require_all,
    sample,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    dir: Path
    cache_bytes: int = field(default=1024, metadata={"help": "memory for readers"})
    sync: Literal["group", "none"] = "group"
    rate: float = 1.5
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        require_all(
            (self.cache_bytes >= 0, "store.cache_bytes", "not negative"), (self.rate > 0, "store.rate", "above 0")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    port: int = 8080
    is_open: bool = False
    hosts: tuple[str, ...] = ("localhost",)
    name: str | None = None
    token: str = field(default="", metadata={"secret": True, "help": "how to get in"})
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(self.port < 65536, "web.port", "at most 65535")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    store: Store
    web: Web


def flags(**values: object) -> Layer:
    return Layer("flags", {name.replace("__", "."): value for name, value in values.items()})


def complaints(*layers: Layer) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(Root, layers)
    return caught.value.complaints


def test_defaults_need_only_what_is_required() -> None:
    assert load(Root, [flags(store__dir="/x")]) == Root(store=Store(dir=Path("/x")), web=Web())


def test_later_layers_win(tmp_path: Path) -> None:
    config = tmp_path / "a.toml"
    config.write_text('[store]\ndir = "/file"\ncache_bytes = 1\n[web]\nport = 1\n')
    environ = {"ANABRANCH_WEB_PORT": "2", "ANABRANCH_STORE_CACHE_BYTES": "2", "ANABRANCH_SERVICE_URL": "x", "HOME": "y"}
    root = load(Root, [file_layer(config), env_layer(Root, environ), flags(web__port=3)])
    assert (root.store.dir, root.store.cache_bytes, root.web.port) == (Path("/file"), 2, 3)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("store.cache_bytes", "64MiB", 64 << 20),
        ("store.cache_bytes", "1 kib", 1024),
        ("store.cache_bytes", "1_000", 1000),
        ("store.rate", "2", 2.0),
        ("store.rate", 2, 2.0),
        ("store.sync", "none", "none"),
        ("store.colour", "blue", Colour.BLUE),
        ("web.is_open", "yes", True),
        ("web.is_open", "off", False),
        ("web.hosts", "a, b", ("a", "b")),
        ("web.hosts", ["a"], ("a",)),
        ("web.ports", "1,2", (1, 2)),
        ("web.name", "", None),
        ("web.name", "n", "n"),
    ],
)
def test_text_and_toml_values_are_converted(name: str, raw: object, value: object) -> None:
    root = load(Root, [Layer("t", {"store.dir": "/x", name: raw})])
    section, key = name.split(".")
    assert getattr(getattr(root, section), key) == value


@pytest.mark.parametrize(
    ("name", "raw", "text"),
    [
        ("store.cache_bytes", "64 apples", "store.cache_bytes: '64 apples' is not a size like 65536 or 64MiB (t)"),
        ("web.port", "64KiB", "web.port: '64KiB' is not a whole number (t)"),
        ("web.port", True, "web.port: True is not a whole number (t)"),
        ("web.port", 1.5, "web.port: 1.5 is not a whole number (t)"),
        ("store.rate", "nan", "store.rate: 'nan' is not a number (t)"),
        ("store.sync", "x", "store.sync: 'x' is not one of group, none (t)"),
        ("store.colour", "x", "store.colour: 'x' is not one of red, blue (t)"),
        ("web.is_open", "maybe", "web.is_open: 'maybe' is not true or false (t)"),
        ("web.hosts", 3, "web.hosts: 3 is not a list (t)"),
        ("web.token", 3, "web.token: the value given is not text (t)"),
        ("web.prot", 3, "web.prot: no such setting (t); did you mean web.port?"),
        ("zzz.y", 3, "zzz.y: no such setting (t)"),
        ("web.port", 70000, "web.port: at most 65535"),
    ],
)
def test_each_complaint_names_setting_and_reason(name: str, raw: object, text: str) -> None:
    assert complaints(Layer("t", {"store.dir": "/x", name: raw})) == (text,)


def test_all_complaints_are_in_one_report() -> None:
    found = complaints(Layer("env", {"store.rate": "x", "web.port": "y"}), flags(web__colour=1, store__cache_bytes=-1))
    assert len(found) == 4
    assert "store.dir: is required" in found
    both = complaints(flags(store__dir="/x", store__rate=0, store__cache_bytes=-1))
    assert both == ("store.cache_bytes: not negative", "store.rate: above 0")


def test_a_group_may_refuse_with_any_error() -> None:
    @dataclass(frozen=True)
    class Picky:
        x: int = 0

        def __post_init__(self) -> None:
            raise ValueError("picky.x: never; picky.y: neither")

    @dataclass(frozen=True)
    class Picked:
        picky: Picky

    Picked.__annotations__["picky"] = Picky
    with pytest.raises(SettingsError) as caught:
        load(Picked, [])
    assert caught.value.complaints == ("picky.x: never", "picky.y: neither")


@dataclass(frozen=True)
class Keys:
    key: Path | None = field(default=None, metadata={"file": True})
    secret: str = field(default="", metadata={"file": True})
    folder: Path | None = None


@dataclass(frozen=True)
class WithKeys:
    keys: Keys


def test_relative_file_names_in_a_settings_file_are_relative_to_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[keys]\nkey = "a.pem"\nsecret = "../s.key"\nfolder = "data"\n')
    found = load(WithKeys, [file_layer(path)]).keys
    assert (found.key, found.secret) == (tmp_path / "a.pem", f"{tmp_path}/../s.key")
    assert found.folder == Path("data"), "a directory that the broker writes is not a file that the settings name"
    path.write_text('[keys]\nkey = "/a.pem"\nsecret = "data:;base64,aaaa"\n')
    found = load(WithKeys, [file_layer(path)]).keys
    assert (found.key, found.secret) == (Path("/a.pem"), "data:;base64,aaaa")
    flag = Layer("flags", {"keys.key": "b.pem", "keys.secret": ""})
    assert load(WithKeys, [file_layer(path), flag]).keys == Keys(Path("b.pem"), "")


def test_unreadable_files_are_complaints(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("a = 1\n[store]\ndir = '/x'\n")
    assert complaints(file_layer(bad)) == (f"{bad}: `a` stands outside of a [section]",)
    bad.write_text("[store")
    assert str(bad) in complaints(file_layer(bad))[0]
    assert "No such file" in complaints(file_layer(tmp_path / "none.toml"))[0]


def test_sample_holds_every_setting_and_its_values_load_back() -> None:
    text = sample(Root)
    assert "# memory for readers\n#cache_bytes = 1024\n" in text
    assert "#dir =   # required\n" in text
    chosen = [line.removeprefix("#") for line in text.splitlines() if not line.startswith("# ")]
    lines = [line for line in chosen if not line.endswith(("=", "# required"))]
    tree = tomllib.loads("\n".join(lines))
    values = {f"{section}.{key}": value for section, content in tree.items() for key, value in content.items()}
    assert load(Root, [Layer("sample", values), flags(store__dir="/x")]) == load(Root, [flags(store__dir="/x")])


def test_reference_is_a_table() -> None:
    text = reference(Root)
    assert "| `store.cache_bytes` | `1024` | memory for readers |" in text
    assert "| `store.dir` | required |  |" in text
