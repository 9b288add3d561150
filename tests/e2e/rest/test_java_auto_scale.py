"""Pulsar's Java admin client (5.0.0-M1) sets auto-scale policies on our broker."""

from __future__ import annotations

import subprocess
import uuid

import pytest

from tests.services import cache, pulsar_broker
from tests.services.available import give_up
from tests.support.processes.broker_process import BrokerProcess

pytestmark = [pytest.mark.slow]
PROGRAM = cache.BUILDS / "pulsar_broker" / "AutoScalePolicies.java"


def test_policies_of_both_levels_are_set_read_refused_and_removed(broker: BrokerProcess) -> None:
    try:
        jars, java = pulsar_broker.obtain(), pulsar_broker.java()
    except cache.Unavailable as error:
        give_up("pulsar", error)
    topic = f"topic://public/default/t{uuid.uuid4().hex[:8]}"
    ran = subprocess.run(
        [java, "-Xmx256m", "-cp", f"{jars}/*", PROGRAM, broker.http_url, topic, "public/default"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    words = ("unset ", "topic ", "namespace ", "refused ", "removed ")
    found = [line for line in ran.stdout.splitlines() if line.startswith(words)]
    assert found == [
        "unset null",
        "topic true 16 10 20000.0 null",
        "namespace 2",
        f"refused 412 {topic} has a policy that contradicts this one: maxSegments (16) is below minSegments (17)",
        "removed null null",
    ]
