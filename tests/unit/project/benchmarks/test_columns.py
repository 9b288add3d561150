"""The benchmark of batches to columns runs, and takes each way for each kind of record."""

from __future__ import annotations

import json

import pytest

from benchmarks.micro.columns import WAYS, main


def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows][:2] == ["100 B", "20 to 180 B"]
    assert all(row[way] > 0 for row in rows for way in WAYS)
    assert main(["--quick"]) == 0
    assert "by columns" in capsys.readouterr().out
