"""docs/errors.md is made from the classes; every error has a code of its own kind and says when it comes."""

from __future__ import annotations

from pathlib import Path

import anabranch.admin.errors
import anabranch.client.blocking
import anabranch.client.errors
from scripts.errors_reference import errors_of, page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_classes_say() -> None:
    text = (DOCS / "errors.md").read_text()
    assert text == page(), "make it again: python -m scripts.errors_reference > docs/errors.md"


def test_codes_name_one_error_each_and_every_error_says_when() -> None:
    for module in (anabranch.client.errors, anabranch.client.blocking):
        errors = list(errors_of(module))
        codes = [one.code for one in errors]
        assert len(set(codes)) == len(codes), "two errors with one code"
        assert [one.__name__ for one in errors if not one.__doc__] == []
    assert [one.__name__ for one in errors_of(anabranch.admin.errors) if not one.__doc__] == []
