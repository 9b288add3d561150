"""A short fuzz of the admin REST in every CI run; `make soak` does the long one."""

from __future__ import annotations

import pytest

from tests.soak.fuzz_rest import fuzz_rest
from tests.support import exploration
from tests.support.fuzz.rest_requests import route_table
from tests.support.processes.broker_process import BrokerProcess


@pytest.mark.slow
def test_every_route_refuses_invalid_requests_clearly(private_broker: BrokerProcess) -> None:
    seed = exploration.seed(5)
    print(f"seed {seed}")  # shown when the test fails; `python -m tests.soak.fuzz_rest --seed` repeats it
    requests = max(2_000, 6 * len(route_table()))
    outcome = fuzz_rest(private_broker, requests, seed, tell=print)
    assert outcome.faults == []
    answered = sum(outcome.statuses.values())
    refused = sum(count for status, count in outcome.statuses.items() if status >= 400)
    assert answered == requests
    assert 0 < refused < answered, "the requests are all good or all bad: nothing was tested"
    private_broker.stop()
