"""The codec benchmark runs, and the hand-made paths are not slower than the naive ones."""

from __future__ import annotations

import json

import pytest

from benchmarks.micro.codec import main


def test_micro_codec_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert len(rows) == 7
    assert rows["receipt frame"]["ratio"] > 1.2
    assert rows["message header"]["ratio"] > 1.2
    assert main(["--quick"]) == 0
    assert "receipt frame" in capsys.readouterr().out
