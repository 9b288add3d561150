"""Snapshots as JSON files with one entry per line, sorted, so that a change is a readable diff."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "surface"
RECORD = "python -m tests.compatibility.record"


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def read(name: str) -> dict[str, str]:
    found = json.loads(path_of(name).read_text())
    assert isinstance(found, dict)
    return found


def write(name: str, entries: Mapping[str, str]) -> None:
    lines = (f"  {json.dumps(key)}: {json.dumps(entries[key], ensure_ascii=False)}" for key in sorted(entries))
    path_of(name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What was removed, changed and added, one line each; nothing when both are equal."""
    removed = [f"removed: {key}: {before[key]}" for key in sorted(before.keys() - now.keys())]
    added = [f"added: {key}: {now[key]}" for key in sorted(now.keys() - before.keys())]
    changed = [
        f"changed: {key}\n    before: {before[key]}\n    now:    {now[key]}"
        for key in sorted(before.keys() & now.keys())
        if before[key] != now[key]
    ]
    return removed + changed + added


def check(name: str, now: Mapping[str, str]) -> None:
    """Fail with a list of the differences between the snapshot and what stands now."""
    found = differences(read(name), now)
    shown = "\n".join(found)
    assert not found, (
        f"{name}: {len(found)} differences from tests/compatibility/surface/{name}.json\n{shown}\n"
        f"Users rely on these. Undo what was removed or changed. If the change is meant, write the snapshot anew with "
        f"`{RECORD} {name}`, and name the change in the commit."
    )
