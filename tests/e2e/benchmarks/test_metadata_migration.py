"""`make bench-metadata-migration` runs, tiny; and names every figure that has to be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import services

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

GOALS = {
    "migration-sqlite-etcd-blocked": "≤ 1",
    "migration-sqlite-etcd-whole": "≥ 0.5",
    "migration-sqlite-etcd-memory": "≤ 200",
    "migration-publish-p99": "≤ 1.5",
    "migration-publish-gap": "≤ 100",
    "migration-brokers-blocked": "≤ 1",
    "migration-publish-p99-unlimited": None,
    "migration-publish-gap-unlimited": None,
    "migration-brokers-blocked-unlimited": "≤ 1",
}


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    services.shared("etcd")  # skips where it cannot be had
    for name in ("ANABRANCH_MIGRATION_RECORDS", "ANABRANCH_MIGRATION_PAIRS"):
        monkeypatch.delenv(name, raising=False)
    from benchmarks.metadata_migration import main

    target = tmp_path / "result.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(target)]) == 0
    found = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert {name: one["goal"] for name, one in found.items()} == GOALS
    assert all(one["ratio"] >= 0 for one in found.values())
    shown = capsys.readouterr().out
    assert all(one["title"] in shown for one in found.values())
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"
