"""docs/reference/settings.md is generated from the settings; every setting has one line of meaning."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from anabranch.node.settings.node import NodeSettings
from anabranch.runtime.settings import reference

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "settings.md"
ROW = re.compile(r"^\| `([\w.]+)` \| (.*?) \|(.*)\|$", re.MULTILINE)


def test_page_matches_the_settings() -> None:
    fix = "run: anabranch config sample --markdown > docs/reference/settings.md"
    assert PAGE.read_text() == reference(NodeSettings), fix


def test_every_setting_has_a_meaning() -> None:
    rows = ROW.findall(reference(NodeSettings))
    assert len(rows) > 100
    assert [name for name, _, meaning in rows if not meaning.strip()] == []


def test_empty_meaning_is_found() -> None:
    section = dataclasses.make_dataclass("Section", [("size", int, 1)], frozen=True)
    settings = dataclasses.make_dataclass("Settings", [("cache", section, section())], frozen=True)
    assert [meaning.strip() for _, _, meaning in ROW.findall(reference(settings))] == [""]
