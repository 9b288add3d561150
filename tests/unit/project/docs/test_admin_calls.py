"""docs/reference/admin-calls.md says of every call of Pulsar's admin REST whether it is served."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.admin_calls_reference import calls, is_served, page, routes

PAGE = Path(__file__).parents[4] / "docs/reference/admin-calls.md"
ROW = re.compile(r"^\| `([A-Z]+) (\S+)` \| ([a-z ]+) \| (.*) \|$", re.MULTILINE)


def test_page_is_in_step_with_the_routes() -> None:
    again = "make it again: python -m scripts.admin_calls_reference > docs/reference/admin-calls.md"
    assert PAGE.read_text() == page(), again


def test_each_call_of_pulsar_has_one_row() -> None:
    rows = [(verb, path) for verb, path, _, _ in ROW.findall(PAGE.read_text())]
    assert rows == calls() and len(set(rows)) == len(rows) > 400


def test_state_of_a_row_agrees_with_the_routes() -> None:
    served = routes()
    for verb, path, state, why in ROW.findall(PAGE.read_text()):
        assert is_served(verb, path, served) == (state in ("served", "stored only")), (verb, path)
        assert why.strip() or state == "served", (verb, path)
