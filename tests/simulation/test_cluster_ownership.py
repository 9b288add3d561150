"""Ownership while brokers fail and the store loses, delays and refuses. See `cluster_world` for what is checked.

One seed again, with its story: `ANABRANCH_SEED=17 pytest -s tests/simulation/test_cluster_ownership.py -k one_seed`.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation.cluster import ClusterWorld
from tests.support.simulation.cluster_seeds import run_seed
from tests.support.simulation.metadata_processes import seeds


def run(seed: int) -> ClusterWorld:
    trouble, latency_s = (0.03, 0.1, 0.2)[seed % 3], (0.002, 0.15, 0.02, 0.15)[seed // 3 % 4]
    return run_seed(seed, trouble=trouble, latency_s=latency_s, test="test_cluster_ownership")


@pytest.mark.parametrize("span", seeds(500, 5))
def test_slots_never_have_two_owners_and_get_one_again(span: range) -> None:
    for seed in span:
        run(seed)


@pytest.mark.skipif("ANABRANCH_SEED" not in os.environ, reason="for replaying one seed")
def test_one_seed_with_its_log() -> None:
    print("\n".join(run(int(os.environ["ANABRANCH_SEED"])).lines))
