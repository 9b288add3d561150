"""The SDK's benchmark runs once, tiny, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.codec.core import NATIVE
from benchmarks.sdk_throughput import COMPARISONS, main


@pytest.mark.slow
def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    names = ["publish-results", "consume-python", "bulk-publish-arrow", "bulk-consume-python"]
    only = [argument for name in names for argument in ("--only", name)]
    assert main(["--quick", *only, "--dir", str(tmp_path), "--json", str(target)]) == 0
    measures = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    assert set(measures) == {name for name in names if COMPARISONS[name].is_possible}
    shown = capsys.readouterr().out
    for one in measures.values():
        assert one["ratio"] > 0 and one["title"] in shown
        assert one["notes"]["cpu_us_per_message"][0] > 0
    if NATIVE is None:
        assert "bulk-publish-arrow" not in measures
