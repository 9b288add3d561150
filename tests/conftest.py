"""Settings that all tests share: how Hypothesis draws examples, and how long a test may take."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support.exploration import is_exploring

pytest_plugins = ["tests.watchdog"]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A command that ran in this process leaves its log handler, which writes to the standard error of that test."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if one.get_name() == "anabranch"]:
        root.removeHandler(handler)


# No deadline per example: it would fail correct code on a busy machine. `max_examples` bounds the length of a run.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "explore",
    settings.get_profile("repeatable"),
    derandomize=False,
    database=DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".hypothesis" / "examples"),
)
settings.load_profile("explore" if is_exploring() else "repeatable")
