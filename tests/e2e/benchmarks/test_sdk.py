"""The SDK's benchmark runs once, tiny, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.protocol.codec.core import NATIVE
from benchmarks.sdk import clients as sdk_clients
from benchmarks.sdk import kafka_clients
from benchmarks.sdk_kafka import PAIRS
from benchmarks.sdk_throughput import COMPARISONS, main


@pytest.mark.slow
def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    names = ["publish-results", "consume-python", "bulk-publish-arrow", "bulk-consume-python"]
    only = [argument for name in names for argument in ("--only", name)]
    assert main(["--quick", *only, "--dir", str(tmp_path), "--json", str(target)]) == 0
    measures = {one["name"]: one for one in json.loads(target.read_text())["measures"]}
    possible = {name for name in names if COMPARISONS[name].is_possible}
    assert set(measures) == possible | {f"{name}-cpu" for name in possible}
    shown = capsys.readouterr().out
    for one in measures.values():
        assert one["ratio"] > 0 and one["title"] in shown
    for name in possible:
        assert measures[name]["notes"]["cpu_us_per_message"][0] > 0
    if NATIVE is None:
        assert "bulk-publish-arrow" not in measures


def test_every_role_is_there() -> None:
    """Kafka's side needs a library and a server that are not part of the project, so it runs only by hand."""
    ours = {one.role for one in COMPARISONS.values()} | {one.role for one in PAIRS.values()}
    assert ours <= set(sdk_clients.ROLES)
    assert {one.wheel for one in COMPARISONS.values()} <= set(sdk_clients.ROLES)
    assert {one.kafka for one in PAIRS.values()} == set(kafka_clients.ROLES)
