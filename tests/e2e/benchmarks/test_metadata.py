"""`make bench-metadata` runs whole, tiny, on real servers; and names every figure that has to be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import services

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("oxia")]

GOALS = {
    "metadata-sqlite-cas": "≥ 0.7",
    "metadata-sqlite-event": "≤ 3",
    "metadata-zk-bulk-read": "≥ 5",
    "metadata-etcd-bulk": "≥ 3",
    "metadata-oxia-pipelined": "≥ 5",
}


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in services.KINDS:
        services.shared(kind)  # skips where one cannot be had
    from benchmarks.metadata import main

    target = tmp_path / "result.json"
    assert main(["--quick", "--dir", str(tmp_path), "--json", str(target)]) == 0
    record = json.loads(target.read_text())
    found = {one["name"]: one for one in record["measures"]}
    assert {name: found[name]["goal"] for name in GOALS} == GOALS
    watched = {
        f"metadata-watch-{kind}-p{share}" for kind in ("memory", "sqlite", *services.KINDS) for share in (50, 99)
    }
    assert watched <= found.keys()
    assert all(one["ratio"] > 0 for one in found.values())
    shown = capsys.readouterr().out
    assert all(one["title"] in shown for one in found.values())
    assert record["load_before"] and record["load_after"]
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"
