"""Writers and recoveries of BookKeeper ledgers under seeded faults. See `LedgerWorld` for the faults and the checks.

One seed again, with its story: `ANABRANCH_SEED=17 pytest -s tests/simulation/test_bookkeeper_ledgers.py -k one_seed`.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation.bookkeeper import run_seed
from tests.support.simulation.metadata_processes import seeds


@pytest.mark.parametrize("span", seeds(2000, 10))
def test_no_confirmed_entry_is_lost_and_a_ledger_has_one_end(span: range) -> None:
    for seed in span:
        try:
            run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.skipif("ANABRANCH_SEED" not in os.environ, reason="for replaying one seed")
def test_one_seed_with_its_log() -> None:
    print("\n".join(run_seed(int(os.environ["ANABRANCH_SEED"])).lines))
