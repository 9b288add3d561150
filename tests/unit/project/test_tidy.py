"""What no file may contain: private paths, unfinished notes, checks silenced without a reason, giant modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("src", "tests", "scripts", "examples", "benchmarks", "docs", ".ci")
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt")
KINDS = {".py", ".md", ".sh", ".toml", ".proto", ".txt", ""}
MODULE_LINES_MAX = 700

HOME_PATH = re.compile(r"(?<![\w.:}/])/(?:work|root|home)/\w")
INDEX_HOST = re.compile(r"https?://[\w.-]*(?:pypi|artifactory|nexus|registry)[\w.-]*", re.IGNORECASE)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
SILENCED = re.compile(
    r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w,-]+\])?)\s*(?P<reason>.*)$"
)
THIS = Path(__file__).name


def texts() -> list[Path]:
    found = [ROOT / name for name in TOP if (ROOT / name).exists()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in KINDS]
    return sorted(path for path in found if path.name != THIS and not re.search("_pb2|__pycache__", str(path)))


def complaints(text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if HOME_PATH.search(line) or INDEX_HOST.search(line):
            found.append(f"{number}: a private path or package index: {line.strip()}")
        if UNFINISHED.search(line):
            found.append(f"{number}: unfinished: {line.strip()}")
        silenced = SILENCED.search(line)
        if silenced and len(silenced["reason"].strip(" #-:")) < 4:
            found.append(f"{number}: silenced without a reason: {line.strip()}")
    return found


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_tidy(path: Path) -> None:
    text = path.read_text()
    assert complaints(text) == []
    if path.suffix == ".py" and "tests" not in path.parts:
        assert len(text.splitlines()) <= MODULE_LINES_MAX, "too long: split the module"


def test_rules_find_violations() -> None:
    assert complaints("x = '/ro" + "ot/data'") != []
    assert complaints("see https://" + "pypi.example.org/simple") != []
    assert complaints("# TODO later") != []
    assert complaints("import x  # noqa: F401") != []
    assert complaints("import x  # noqa: F401  re-exported for users") == []
    assert complaints("DATA/ledgers and http://localhost:8080/admin") == []
