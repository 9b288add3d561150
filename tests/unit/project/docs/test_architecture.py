"""docs/architecture.md names rooms: every one of them is there, and every package has its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SOURCE = ROOT / "src" / "anabranch"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

NAME = re.compile(r"`([a-z][a-z0-9_]*)`")
FILE = re.compile(r"`(\w+/[\w/]+\.\w+)`")


def rows(heading: str) -> dict[str, str]:
    """First cell of the table behind a heading: the second one."""
    table = TEXT.split(heading, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    cells = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return {first.strip("`"): second for first, second in cells}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_its_rows_and_names_what_is_there(package: str) -> None:
    assert f"| `{package}` | " in TEXT.split("## Rooms")[0], "it stands on no floor"
    named = NAME.findall(rows("## Rooms")[package])
    there = {path.stem for path in (SOURCE / package).iterdir()}
    assert [one for one in named if one not in there] == []
    if package != "broker":
        assert named


def test_the_rooms_of_the_broker_are_there() -> None:
    there = {path.stem for path in (SOURCE / "broker").iterdir()}
    found = rows("### Rooms of the broker")
    assert len(found) > 5
    assert {about: [one for one in NAME.findall(text) if one not in there] for about, text in found.items()} == {
        about: [] for about in found
    }


def test_files_that_are_named_are_there() -> None:
    named = FILE.findall(TEXT)
    assert named
    assert [one for one in named if not (SOURCE / one).exists() and not (ROOT / one).exists()] == []
