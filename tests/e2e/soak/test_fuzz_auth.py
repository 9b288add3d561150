"""Wrong credentials at both ports of a real broker, in every CI run; `make soak` does the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.fuzz_auth import door_opens, fuzz_auth, make_credentials
from tests.support import exploration
from tests.support.processes.broker_process import HOST, BrokerProcess


@pytest.mark.slow
def test_only_valid_credentials_are_accepted(tmp_path: Path) -> None:
    pytest.importorskip("jwt", reason="tokens need PyJWT, which is an extra")
    seed = exploration.seed(3)
    print(f"seed {seed}")  # shown when the test fails; `python -m tests.soak.fuzz_auth --seed` repeats it
    credentials = make_credentials(tmp_path)
    with BrokerProcess(tmp_path / "data", arguments=credentials.settings) as broker:
        assert door_opens(broker.port, "token", credentials.token.encode()), f"the good token was refused by {HOST}"
        outcome = fuzz_auth(broker, credentials, attempts=1_000, seed=seed)
        assert outcome.faults == []
        broker.stop()
