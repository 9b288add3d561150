"""`register` where the first `python3` on the path is not the Python that runs the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.not_activated import run_not_activated
from tests.support.spark.session import Traffic

pytestmark = pytest.mark.slow


def test_register_from_an_environment_that_is_not_activated(broker: BrokerProcess, tmp_path: Path) -> None:
    Traffic(broker.service_url, "not-activated", keys=4).publish(5)
    done = run_not_activated(tmp_path, broker.service_url, "local[1]")
    assert "rows 20" in done.stdout, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_register_names_the_setting_if_workers_lack_the_package(broker: BrokerProcess, tmp_path: Path) -> None:
    done = run_not_activated(tmp_path, broker.service_url, "local[1]", PYSPARK_PYTHON=str(tmp_path / "bin" / "python3"))
    last = done.stderr.strip().splitlines()[-1]
    assert "set PYSPARK_PYTHON=" in last and "No module named" in last, done.stderr[-3000:]
