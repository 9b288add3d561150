"""Documentation pages name only files that exist; every package of the source tree is in the layer table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SOURCE = ROOT / "src" / "anabranch"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOTS = {*PACKAGES, "tests", "docs", "scripts", "src", "benchmarks", "examples"}

PATH = re.compile(r"`((?:\w+/)+\w+(?:\.\w+)?)/?`")


def exists(name: str) -> bool:
    """A path below src/anabranch or below the root; modules are named without `.py`."""
    return any((base / name).exists() or (base / f"{name}.py").exists() for base in (SOURCE, ROOT))


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_a_row_in_the_layer_table(package: str) -> None:
    assert re.search(rf"^\| .*`{package}`", TEXT, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    named = [name for name in PATH.findall(page.read_text()) if name.split("/")[0] in ROOTS]
    assert [name for name in named if not exists(name)] == []


def test_architecture_names_modules() -> None:
    assert len(PATH.findall(TEXT)) > 50
