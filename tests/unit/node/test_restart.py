"""Lives of one process: counted when they were short, the same command again."""

from __future__ import annotations

import pytest

from anabranch.node.restart import COUNTED_MAX, SHORT_RUNS, counted, same_command, short_run_count
from anabranch.node.supervisor import SETTLED_SECONDS


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        *[({SHORT_RUNS: text}, None) for text in ("", "x", "-1")],
        *[({SHORT_RUNS: text}, count) for text, count in (("0", 0), ("3", 3), ("9" * 40, COUNTED_MAX))],
    ],
)
def test_short_run_count_is_read_from_the_environment(environ: dict[str, str], found: int | None) -> None:
    assert short_run_count(environ) == found


def test_long_run_resets_the_count() -> None:
    assert counted(7, SETTLED_SECONDS) == 0
    assert counted(None, 0.0) == 1
    assert counted(7, SETTLED_SECONDS - 0.1) == 8
    assert counted(COUNTED_MAX, 0.0) == COUNTED_MAX


def test_restart_uses_the_original_command() -> None:
    assert same_command("/venv/python", ["python3", "-m", "anabranch", "broker", "--id", "b 1"]) == [
        "/venv/python", "-m", "anabranch", "broker", "--id", "b 1",
    ]  # fmt: skip
