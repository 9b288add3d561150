"""The etcd benchmark runs, tiny. What it measures here means nothing; that it measures does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import services

pytest.importorskip("aetcd")


def test_runs(tmp_path: Path) -> None:
    services.shared("etcd")  # skips where there is no server
    from benchmarks.stores import etcd as metadata_etcd
    from benchmarks.support.measure import Scene, table

    found = metadata_etcd.run(Scene(tmp_path, quick=True))
    assert [outcome.name for outcome in found] == ["metadata-etcd-bulk", "metadata-etcd-event"]
    assert all(outcome.ratio > 0 for outcome in found)
    assert len(list(table(found))) == 3
