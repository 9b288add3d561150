"""docs/operations/troubleshooting.md: error codes, log lines and settings that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anabranch.broker.stats.metrics import FAMILIES
from anabranch.node.settings.node import NodeSettings
from anabranch.runtime.settings import reference

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "src" / "anabranch").rglob("*.py")))
NAMED = re.compile(r"`([^`]+)`")
FIRST_CELLS = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("name", sorted({name for cell in FIRST_CELLS for name in NAMED.findall(cell)}))
def test_code_log_line_or_metric_exists(name: str) -> None:
    metrics = {family.name for family in FAMILIES}
    assert f'"{name}"' in SOURCE or name in metrics or name.startswith("/"), name


def test_settings_exist() -> None:
    known = set(re.findall(r"^\| `([\w.]+)` \|", reference(NodeSettings), re.MULTILINE))
    sections = {name.split(".")[0] for name in known}
    named = {name.split(" ")[0] for name in NAMED.findall(TEXT)}
    asked = {name for name in named if name.split(".")[0] in sections and "." in name}
    assert len(asked) > 10
    assert asked - known == set()
