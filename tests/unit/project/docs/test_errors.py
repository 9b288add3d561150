"""docs/reference/errors.md is made from the classes; every error has a code of its own and says when it comes."""

from __future__ import annotations

from pathlib import Path

import anabranch.admin
import anabranch.client
from scripts.errors_reference import errors_of, page

DOCS = Path(__file__).parents[4] / "docs"


def test_the_page_is_what_the_classes_say() -> None:
    text = (DOCS / "reference" / "errors.md").read_text()
    assert text == page(), "make it again: python -m scripts.errors_reference > docs/reference/errors.md"


def test_codes_name_one_error_each_and_every_error_says_when() -> None:
    errors = errors_of(anabranch.client)
    codes = [one.code for one in errors]
    assert sorted(set(codes)) == codes, "two errors with one code"
    assert len(errors) > 25
    assert [one.__name__ for one in (*errors, *errors_of(anabranch.admin)) if not one.__doc__] == []
