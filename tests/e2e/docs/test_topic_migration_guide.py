"""Each command of docs/operations/topic-migration.md is run, in order, and prints what the page shows.

A stock consumer blocks the migration as in the page, and leaves while `--wait` waits for it. Address, client version
and times differ from run to run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from anabranch.testing import Broker
from tests.integration.broker.test_partition_hashes import java
from tests.support.traffic.stock_client import new_client

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs/operations/topic-migration.md"
LEAVES_AFTER_SECONDS = 2.0
PARTITIONS = 16
_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIES = ((re.compile(r"at [\d.]+:\d+ \([^)]*\)"), "at ADDRESS (CLIENT)"),)


def walk() -> list[tuple[str, list[str]]]:
    """Commands and what they print."""
    steps: list[tuple[str, list[str]]] = []
    for block in _BLOCK.findall(PAGE.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            elif steps:
                steps[-1][1].append(line)
    return steps


def same(line: str) -> str:
    for pattern, instead in _VARIES:
        line = pattern.sub(instead, line)
    return line.rstrip()


def run(broker: Broker, command: str) -> list[str]:
    program, *arguments = shlex.split(command)
    assert program == "anabranch"
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments, "--admin-url", broker.http_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.stdout.splitlines()


def test_operator_can_follow_the_page() -> None:
    with Broker() as broker, closing(new_client(broker.service_url)) as stock:
        follow(broker, stock)


def follow(broker: Broker, stock: pulsar.Client) -> None:
    run(broker, f"anabranch admin topics create-partitioned-topic orders -p {PARTITIONS}")
    audit = stock.subscribe("orders", "audit", consumer_name="c-7")
    work = stock.subscribe("orders", "work", consumer_type=pulsar.ConsumerType.Shared)
    producer = stock.create_producer("orders", message_router=java)
    for number in range(64):
        producer.send(b"x", partition_key=f"customer-{number}")
    producer.close()
    work.close()
    steps = walk()
    assert len(steps) >= 2
    for command, shown in steps:
        leaving = threading.Timer(LEAVES_AFTER_SECONDS, audit.close)
        if "--wait" in command:
            leaving.start()
        printed = run(broker, command)
        if leaving.is_alive():
            leaving.join()
        assert [same(line) for line in printed] == [same(line) for line in shown], command
