"""Automatic splits into four and merges of three under faults, seeded, as in `test_controller_autoscale.py`."""

from __future__ import annotations

import pytest

from anabranch.controller.autoscale import topic_scaler
from tests.simulation.test_controller_autoscale import SEEDS
from tests.support.simulation.autoscale import DecideTwice, live
from tests.support.simulation.metadata_processes import seeds

WIDE = {"split_factor_max": 4, "merge_factor_max": 3}


@pytest.fixture(autouse=True)
def decide_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_scaler, "decide", DecideTwice())


@pytest.mark.parametrize("part", seeds(SEEDS, 10))
def test_topic_with_wide_splits_and_merges_under_faults(part: range) -> None:
    for seed in part:
        live(SEEDS + seed, **WIDE)
