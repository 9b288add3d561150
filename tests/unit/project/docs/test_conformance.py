"""docs/reference/conformance.md names tests that exist, and the versions of the clients that they run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.conformance_reference import OTHERS, named_tests, page

ROOT = Path(__file__).parents[4]


def test_page_is_in_step() -> None:
    again = "make it again: python -m scripts.conformance_reference > docs/reference/conformance.md"
    assert (ROOT / "docs/reference/conformance.md").read_text() == page(), again


@pytest.mark.parametrize("name", named_tests())
def test_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE), name


def test_files_of_further_clients_exist() -> None:
    assert [file for _, _, _, file in OTHERS if not (ROOT / file).is_file()] == []
