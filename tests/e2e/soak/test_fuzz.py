"""A short fuzz of a real broker in every CI run; `make soak` does the long one."""

from __future__ import annotations

import pytest

from tests.soak.fuzz import faults, fuzz
from tests.support import exploration
from tests.support.processes.broker_process import BrokerProcess


@pytest.mark.slow
def test_mutated_frames_harm_only_their_connection(private_broker: BrokerProcess) -> None:
    seed = exploration.seed(2)
    print(f"seed {seed}")  # shown when the test fails; `python -m tests.soak.fuzz --seed` repeats it
    outcome = fuzz(private_broker, frames=5_000, seed=seed, tell=print)
    assert faults(outcome, private_broker) == []
    assert outcome.frames == 5_000
    assert outcome.closed > 0, "no frame was refused: the mutations are too tame"
    private_broker.stop()
