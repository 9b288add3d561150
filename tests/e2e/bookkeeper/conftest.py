"""Four bookies for the tests of this folder, which all run in one process: see `pytestmark` of each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services import available, bookkeeper
from tests.services.cache import Unavailable

QUORUMS = "ensemble=3&write-quorum=3&ack-quorum=2"


@pytest.fixture(scope="package")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bookkeeper.BookKeeper]:
    """An ensemble of three, and a spare."""
    try:
        made = bookkeeper.cluster(tmp_path_factory.mktemp("bookies"), size=4)
    except Unavailable as error:
        available.give_up("bookkeeper", error)
    with made:
        yield made


def options(bookies: bookkeeper.BookKeeper, chroot: str) -> list[str]:
    return ["--metadata", f"zk://{bookies.hosts}/{chroot}", "--storage", f"{bookies.url}?{QUORUMS}&timeout-ms=2000"]
