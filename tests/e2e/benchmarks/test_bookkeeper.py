"""`make bench-bookkeeper` runs, tiny; and names every figure that has to be reached. A minute, so not in every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.services import bookkeeper
from tests.services.available import give_up
from tests.services.cache import Unavailable

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("bookkeeper")]

GOALS = {
    "bookkeeper-adds-100": None,
    "bookkeeper-adds-10k": None,
    "bookkeeper-publish-small": None,
    "bookkeeper-publish-large": None,
    "bookkeeper-blocking": None,
    "bookkeeper-catch-up": None,
    "bookkeeper-killed": "≤ 200",
}


def test_runs(tmp_path: Path) -> None:
    try:
        bookkeeper.obtain()
    except Unavailable as error:
        give_up("bookkeeper", error)
    from benchmarks.bookkeeper import main

    target = tmp_path / "result.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert {name: one["goal"] for name, one in found.items()} == GOALS
