"""Settings that all tests share: how Hypothesis draws examples, and how long a test may take."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support.exploration import is_exploring

pytest_plugins = ["tests.watchdog"]

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
