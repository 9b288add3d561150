"""Recorded traffic under scaling policies: what Spark sums of a real topic, and `anabranch spark simulate` on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.model.autoscale.simulation import SLOT_WIDTH
from anabranch.model.routing import RingHash, key_hash
from anabranch.spark.jobs.scaling_policy import ScalePolicy
from anabranch.spark.jobs.simulate import RecordedTraffic, recorded
from tests.spark.test_separate_processes import run
from tests.support.spark.scalable_topics import ScalableBroker
from tests.support.spark.session import Traffic, body

pytestmark = pytest.mark.slow

NAME = "recorded"
TOPIC = f"topic://public/default/{NAME}"
KEYS, ROUNDS, WHALE, KEYLESS = 200, 2, 150, 50
TICK = 0.5
EAGER = {
    "splitMsgRateInThreshold": "10",
    "mergeMsgRateInThreshold": "0",
    "splitCooldownSeconds": "0",
    "splitRateWindowSeconds": "5",
    "maxSegments": "4",
}


@pytest.fixture(scope="module")
def rivers(spark: Any) -> Iterator[ScalableBroker]:
    """A topic that was split while its traffic was recorded."""
    with ScalableBroker() as made:
        made.create(TOPIC, 1)
        traffic = Traffic(made.service_url, TOPIC, keys=KEYS)
        traffic.publish(ROUNDS - 1)
        made.split(TOPIC, 0)
        traffic.publish(1)
        with blocking.connect(made.service_url) as client, client.producer(TOPIC) as producer:
            for number in range(WHALE):
                producer.send_nowait(body("whale", number), key="whale")
            for _ in range(KEYLESS):
                producer.send_nowait(b"keyless")
            producer.flush(60.0)
        yield made


@pytest.fixture(scope="module")
def traffic(spark: Any, rivers: ScalableBroker) -> RecordedTraffic:
    return recorded(spark, rivers.service_url, TOPIC, tick_seconds=TICK)


def ring(key: str) -> int:
    return RingHash.LOW16.ring_position(key_hash(key))


def test_sums_of_recorded_traffic_are_exact_by_slot_and_hot_key(traffic: RecordedTraffic) -> None:
    found = traffic
    assert found.messages == KEYS * ROUNDS + WHALE + KEYLESS
    assert len(found.ticks) == int(found.seconds // TICK) + 1
    keys: dict[int, float] = {}
    slots: dict[int, float] = {}
    for tick in found.ticks:
        for table, sums in ((tick.keys, keys), (tick.slots, slots)):
            for place, (messages, _) in table.items():
                sums[place] = sums.get(place, 0.0) + messages * TICK
    assert round(keys[ring("whale")]) == WHALE, "one hash value with a large share counts by itself"
    assert round(sum(keys.values()) + sum(slots.values())) == found.messages
    expected: dict[int, int] = {}
    for number in range(KEYS):
        position = ring(f"key-{number}")
        if position not in keys:
            expected[position // SLOT_WIDTH] = expected.get(position // SLOT_WIDTH, 0) + ROUNDS
    assert all(round(slots[slot]) >= messages for slot, messages in expected.items())
    assert round(sum(slots.values())) - sum(expected.values()) <= KEYLESS
    whale = round(
        sum(size * TICK for tick in found.ticks for at, (_, size) in tick.keys.items() if at == ring("whale"))
    )
    assert whale == sum(len(body("whale", number)) for number in range(WHALE))


def test_policies_are_compared_on_a_recorded_topic_from_the_command_line(
    traffic: RecordedTraffic, rivers: ScalableBroker, tmp_path: Path
) -> None:
    """Each title with the figures of the same policy replayed here."""
    options = [word for name, value in EAGER.items() for word in ("--policy", f"{name}={value}")]
    options += ["--compare", "never:enabled=false", "--tick", str(TICK), "--master", "local[1]"]
    picture = tmp_path / "segments.svg"
    shown = run(
        ["-m", "anabranch", "spark", "simulate", TOPIC, *options, "--json", "--picture", str(picture)],
        tmp_path,
        ANABRANCH_SERVICE_URL=rivers.service_url,
    )
    said: dict[str, Any] = json.loads(shown.strip().splitlines()[-1])
    policies = {"policy": ScalePolicy.of(EAGER), "never": ScalePolicy.of({"enabled": "false"})}
    for title, policy in policies.items():
        expected = json.loads(json.dumps(traffic.replay(policy).as_dict()))
        assert said[title] == expected
    assert said["policy"]["splits"] > 0, "600 messages in a few seconds"
    assert said["never"]["splits"] == 0
    assert "never" in picture.read_text()
