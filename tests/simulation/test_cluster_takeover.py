"""Takeover while only brokers fail: killed, stopped, cut off, drained; the store does what it is asked, now or later.

One seed again, with its story: `ANABRANCH_SEED=17 pytest -s tests/simulation/test_cluster_takeover.py -k one_seed`.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation.cluster import ClusterWorld
from tests.support.simulation.cluster_seeds import run_seed
from tests.support.simulation.metadata_processes import seeds


def run(seed: int) -> ClusterWorld:
    return run_seed(seed, trouble=0.0, latency_s=(0.002, 0.05, 0.3)[seed % 3], test="test_cluster_takeover")


@pytest.mark.parametrize("span", seeds(500, 5))
def test_takeover_finds_everything_that_was_confirmed(span: range) -> None:
    for seed in span:
        run(seed)


@pytest.mark.skipif("ANABRANCH_SEED" not in os.environ, reason="for replaying one seed")
def test_one_seed_with_its_log() -> None:
    print("\n".join(run(int(os.environ["ANABRANCH_SEED"])).lines))
