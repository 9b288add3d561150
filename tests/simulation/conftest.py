"""Log lines below CRITICAL are switched off: simulated faults would write thousands."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logs = [logging.getLogger(name) for name in ("anabranch.metadata", "anabranch.cluster")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    yield
    for log, level in zip(logs, before, strict=True):
        log.setLevel(level)
