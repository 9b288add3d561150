"""Three bookies for the tests of this folder, which all run in one process: see `pytestmark` of each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import available, bookkeeper
from tests.services.cache import Unavailable


@pytest.fixture(scope="package")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bookkeeper.BookKeeper]:
    """Four: an ensemble of three, and a spare."""
    try:
        made = bookkeeper.cluster(tmp_path_factory.mktemp("bookkeeper"), size=4)
    except Unavailable as error:
        available.give_up("bookkeeper", error)
    with made:
        yield made


@pytest.fixture
def running(bookies: bookkeeper.BookKeeper) -> bookkeeper.BookKeeper:
    """All bookies of the cluster, as at its start."""
    for bookie in bookies.bookies:
        if not bookie.is_alive:
            bookie.start()
    return bookies


@pytest.fixture
def java(bookies: bookkeeper.BookKeeper, tmp_path: Path) -> Iterator[bookkeeper.JavaLedgers]:
    client = bookkeeper.JavaLedgers(bookies.hosts, tmp_path / "java.log")
    yield client
    client.close()
