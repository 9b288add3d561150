"""Automatic splits and merges by PIP-483, two by two, in seeded simulations: `support/simulation/autoscale.py`.

`test_controller_autoscale_wide.py` has the other half of the seeds, so that two workers share them.
"""

from __future__ import annotations

import os

import pytest

from anabranch.controller.autoscale import topic_scaler
from tests.support.simulation.autoscale import DecideTwice, live
from tests.support.simulation.metadata_processes import seeds

SEEDS = int(os.environ.get("ANABRANCH_SEEDS", "2000")) // 2


@pytest.fixture(autouse=True)
def decide_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_scaler, "decide", DecideTwice())


@pytest.mark.parametrize("part", seeds(SEEDS, 10))
def test_topic_that_scales_itself_under_faults(part: range) -> None:
    for seed in part:
        live(seed)


def test_simulation_of_auto_scaling_reaches_splits_merges_and_new_leaders() -> None:
    lives = [live(seed) for seed in range(12)]
    kinds = [one.kind for life in lives for one in life.changes]
    assert kinds.count("split") > 40
    assert kinds.count("merge") > 40
    assert sum(life.leaders for life in lives) > 60
    assert sum(sum(life.sent.values()) for life in lives) > 10_000
    assert all(life.loads.written > 0 for life in lives)
