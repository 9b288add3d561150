"""Pulsar's Java admin client (5.0.0-M1), which `pulsar-admin metadata-migration` calls, moves our metadata.

The command itself is in no artifact that can be fetched: `pulsar-client-tools` is published up to 4.0.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.services import cache, pulsar_broker
from tests.services.available import give_up
from tests.support.processes.broker_process import BrokerProcess

pytestmark = [pytest.mark.slow]
PROGRAM = cache.BUILDS / "pulsar_broker" / "MetadataMigrations.java"


def test_start_status_and_refusals(private_broker: BrokerProcess, tmp_path: Path) -> None:
    try:
        jars, java = pulsar_broker.obtain(), pulsar_broker.java()
    except cache.Unavailable as error:
        give_up("pulsar", error)
    target = f"sqlite:///{tmp_path}/target"
    ran = subprocess.run(
        [java, "-Xmx256m", "-cp", f"{jars}/*", PROGRAM, private_broker.http_url, target],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = [line for line in ran.stdout.splitlines() if line.startswith(("state ", "refused ", "not ", "started"))]
    assert found[0].startswith("state NOT_STARTED")
    assert found[1].startswith("refused 400 no metadata store for 'foo:bar'")
    assert found[2:4] == ["started", f"state COMPLETED {target}"]
    assert found[4].startswith("refused 400 the target is the store in use")
