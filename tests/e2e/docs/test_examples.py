"""Every file in examples/ runs against a real broker and ends with exit code 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.broker_process import BrokerProcess

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {
        "asyncio_client",
        "keyed_partitions",
        "produce_consume",
        "reader",
        "sdk_checkpoint",
        "sdk_encryption",
        "sdk_fan_in",
        "sdk_fastapi",
        "sdk_handler",
        "sdk_migration",
        "sdk_orders",
        "sdk_work_queue",
        "work_queue_dlq",
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, broker: BrokerProcess) -> None:
    urls = {"ANABRANCH_SERVICE_URL": broker.service_url, "ANABRANCH_ADMIN_URL": broker.http_url}
    done = subprocess.run(
        [sys.executable, str(example)], env={**os.environ, **urls}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{broker.log_tail()}"
    assert done.stdout.strip(), "an example should show something"


def test_an_example_takes_the_service_url_as_argument(broker: BrokerProcess) -> None:
    script = next(path for path in EXAMPLES if path.stem == "produce_consume")
    done = subprocess.run([sys.executable, str(script), broker.service_url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "received  hello 9" in done.stdout
