"""docs/architecture.md: every file that it names exists, every package of the source tree stands in its layer table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SOURCE = ROOT / "src" / "anabranch"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

PATH = re.compile(r"`((?:\w+/)+\w+(?:\.\w+)?)/?`")


def exists(name: str) -> bool:
    """A path below src/anabranch or below the root; modules are named without `.py`."""
    return any((base / name).exists() or (base / f"{name}.py").exists() for base in (SOURCE, ROOT))


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_a_row_in_the_layer_table(package: str) -> None:
    assert re.search(rf"^\| .*`{package}`", TEXT, re.MULTILINE)


def test_files_and_modules_that_are_named_exist() -> None:
    named = [
        name for name in PATH.findall(TEXT) if name.split("/")[0] in {*PACKAGES, "tests", "docs", "scripts", "src"}
    ]
    assert len(named) > 10
    assert [name for name in named if not exists(name)] == []
