"""The pytest plugin of the package: one fixture. Loads nothing of the broker until a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.testing.broker import Broker


@pytest.fixture(scope="session")
def anabranch_broker() -> Iterator[Broker]:
    """A broker for the whole test session, on free ports with a temporary directory. Use new topics in each test."""
    with Broker() as broker:
        yield broker
