"""Short cluster soaks in every CI run; `make soak` does the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.cluster_soak import soak
from tests.support import exploration


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "zk"])
def test_no_acknowledged_message_is_lost_under_broker_faults(kind: str, tmp_path: Path) -> None:
    seed = exploration.seed(7)
    print(f"seed {seed}")  # shown when the test fails; `python -m tests.soak.cluster_soak --seed` repeats the plan
    outcome = soak(tmp_path, kind, rounds=3, seed=seed, tell=print)
    assert outcome.faults == []
    assert all(verdict.acknowledged > 150 for verdict in outcome.verdicts.values())
