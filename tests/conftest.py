"""What all tests share: how Hypothesis behaves on a busy machine, and how long a test may take."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.watchdog"]

# A deadline per example fails good code on a busy machine; the length of a run is bounded by `max_examples`.
settings.register_profile("anabranch", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("anabranch")
