"""The latest moment that fits a limit: found in few questions, never beyond the limit."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.spark.source.admission import AHEAD_MS, ENOUGH, latest_fitting

NOW = 1_700_000_000_000


class Answer(NamedTuple):
    before: int
    rows: int


class Published:
    """Times of messages, and how often they were asked for."""

    def __init__(self, times: list[int]) -> None:
        self.times, self.asked = times, 0

    def before(self, moment: int) -> Answer:
        self.asked += 1
        return Answer(moment, sum(time < moment for time in self.times))

    def found(self, limit: int) -> tuple[Answer, Answer | None]:
        return latest_fitting(self.before, lambda answer: answer.rows, limit, NOW)


@given(
    st.lists(st.integers(NOW - 10**9, NOW + AHEAD_MS - 1), min_size=2, max_size=200, unique=True),
    st.integers(1, 150),
)
def test_as_much_as_fits_and_no_more(times: list[int], limit: int) -> None:
    published = Published(times)
    fit, over = published.found(min(limit, len(times) - 1))
    limit = min(limit, len(times) - 1)
    assert limit * ENOUGH <= fit.rows <= limit
    assert over is None or over.rows > limit
    assert published.asked < 60


def test_many_at_one_moment_do_not_fit() -> None:
    fit, over = Published([NOW - 5_000] * 100).found(10)
    assert fit.rows == 0
    assert over is not None
    assert over.rows == 100
    assert over.before - fit.before == 1, "the first moment there is"


@pytest.mark.parametrize("ago", [0, 1_000, 86_400_000, NOW - 1])
def test_a_backlog_of_any_age(ago: int) -> None:
    published = Published([max(NOW - ago + i, 0) for i in range(1_000)])
    fit, _ = published.found(100)
    assert 90 <= fit.rows <= 100
