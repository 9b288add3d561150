"""Looks that are repeated: what is printed when, and which failures end them."""

from __future__ import annotations

import pytest

from anabranch.cli.output.repeat import Answers
from anabranch.model.errors import Error


class Away(Error):
    code = "unreachable"
    retryable = True


def test_answers_are_printed_when_they_change(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes: list[str | Away] = ["a", "a", Away("gone"), Away("gone"), "a", "b"]
    given = iter(outcomes)

    def ask() -> str:
        one = next(given)
        if isinstance(one, Error):
            raise one
        return one

    answers = Answers(ask)
    printed = []
    for _ in range(6):
        answers.look()
        printed.append(tuple(capsys.readouterr()))
    assert printed == [("a\n", ""), ("", ""), ("", "no answer: gone\n"), ("", ""), ("a\n", ""), ("b\n", "")]


def test_failure_that_stays_ends_it() -> None:
    class Refused(Error):
        code = "authorization"

    def ask() -> str:
        raise Refused("not you")

    with pytest.raises(Refused):
        Answers(ask).look()
