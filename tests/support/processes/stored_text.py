"""Searches what a broker has written."""

from __future__ import annotations

from pathlib import Path


def files_with(data: Path, text: bytes) -> list[Path]:
    """The files below a running broker's directory that contain these bytes; files that it deletes meanwhile do not."""
    found, read = [], 0
    for path in data.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        read += len(content)
        if text in content:
            found.append(path)
    assert read, f"nothing is stored in {data}"
    return found
