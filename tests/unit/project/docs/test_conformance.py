"""docs/reference/conformance.md is made from the marks of the tests that run clients of Apache Pulsar."""

from __future__ import annotations

from pathlib import Path

from scripts.conformance_reference import Mark, marks, marks_in, page

ROOT = Path(__file__).parents[4]


def test_page_is_in_step() -> None:
    again = "make it again: python -m scripts.conformance_reference > docs/reference/conformance.md"
    assert (ROOT / "docs/reference/conformance.md").read_text() == page(), again


def test_marks_are_read() -> None:
    text = (
        '@pytest.mark.conformance("seek", client="Go")\n'
        '@pytest.mark.conformance("seek", client="Java", brokers=3)\n'
        "async def test_it(): ...\n\n"
        "def test_other(): ...\n"
    )
    assert list(marks_in(text, "f.py")) == [
        Mark("seek", "Go", 1, "f.py::test_it"),
        Mark("seek", "Java", 3, "f.py::test_it"),
    ]


def test_one_test_is_named_once_for_each_feature_and_client() -> None:
    found = marks()
    assert len(found) == len(set(found)) > 60


def test_every_row_of_three_brokers_is_also_run_on_one() -> None:
    """Or is about several brokers."""
    found = marks()
    one = {(mark.feature, mark.client) for mark in found if mark.brokers == 1}
    alone = {mark.feature for mark in found if mark.brokers > 1 and (mark.feature, mark.client) not in one}
    assert alone <= {
        "a revoked grant ends clients",
        "admin: backlog-quota-check, terminate",
        "policies of a topic: largest message",
        "stats: times of topics and consumers",
    }
