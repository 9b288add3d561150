"""How many rows a scan reads at once."""

from __future__ import annotations

import pytest

from anabranch.metadata.interface import Item, Versioned
from anabranch.metadata.sqlite.store import READ_BYTES, next_rows


def page(rows: int, size: int) -> list[Item]:
    return [(f"/{number}", Versioned(b"x" * size, 1, 1, 1, False)) for number in range(rows)]


@pytest.mark.parametrize(
    ("rows", "size", "following"),
    [
        (100, 500, 1_000),
        (100, 0, 1_000),
        (100, 40_000, READ_BYTES // 40_000),
        (4, 1_000_000, 4),
        (1, READ_BYTES * 2, 1),
    ],
)
def test_large_values_are_read_in_smaller_pages(rows: int, size: int, following: int) -> None:
    assert next_rows(page(rows, size), 1_000) == following
