"""Settings that change while brokers run: which, their names, and what a stored value does at a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.errors import NotAllowed
from anabranch.node.dynamic_settings import DYNAMIC, DynamicSettings, accepted, changeable
from anabranch.node.settings.node import NodeSettings
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.settings import SettingsError, changed, shown
from anabranch.storage.settings import StorageSettings

START = NodeSettings(storage=StorageSettings(dir=Path("somewhere")))


def test_every_dynamic_setting_exists() -> None:
    assert set(DYNAMIC) - set(shown(START)) == set()


def test_the_page_lists_them() -> None:
    page = (Path(__file__).parents[3] / "docs/operations/running.md").read_text()
    rows = [f"| `{name}` | {f'`{pulsar}`' if pulsar else ''} |" for name, pulsar in DYNAMIC.items()]
    assert "\n".join(rows) in page


def test_values_are_converted_and_checked_as_at_the_start() -> None:
    assert changed(START, {"broker.partitions_max": "7"}, "here").broker.partitions_max == 7
    with pytest.raises(SettingsError, match="is not a whole number"):
        changed(START, {"broker.partitions_max": "many"}, "here")
    with pytest.raises(SettingsError, match="between 0 and"):
        changed(START, {"broker.partitions_max": "7", "broker.auto_create_partitions": "8"}, "here")
    with pytest.raises(SettingsError, match="did you mean"):
        changed(START, {"broker.partition_max": "7"}, "here")


def test_stored_value_that_contradicts_the_start_is_left_out() -> None:
    stored = {"broker.auto_create_partitions": "9999", "broker.deduplication": "true", "broker.gone": "1"}
    found = accepted(START, stored)
    assert (found.broker.auto_create_partitions, found.broker.deduplication) == (0, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("network.port", "the ports are opened with it"),
        ("broker.message_bytes_max", "it is read at start"),
        ("storage.dir", "the volume is opened with it"),
        ("no.such", "there is no setting no.such"),
    ],
)
def test_other_settings_answer_why_not(name: str, why: str) -> None:
    with pytest.raises(NotAllowed, match="Can't update non-dynamic configuration") as refused:
        changeable(name, shown(START))
    assert why in refused.value.reason


def test_pulsars_names_are_known() -> None:
    assert changeable("allowAutoTopicCreation", {}) == "broker.auto_create_topics"


async def test_second_broker_reads_what_the_first_stored() -> None:
    clock = SystemClock()
    applied: list[bool] = []

    async def apply(settings: NodeSettings) -> None:
        applied.append(settings.broker.deduplication)

    async with MemoryStore(clock) as store:
        first = DynamicSettings(store, START, clock, apply)
        assert (await first.load()) == START
        await first.set("brokerDeduplicationEnabled", "true")
        assert (first.values(), applied) == ({"broker.deduplication": "true"}, [True])
        with pytest.raises(NotAllowed, match="true or false"):
            await first.set("broker.deduplication", "perhaps")
        second = DynamicSettings(store, START, clock, apply)
        assert (await second.load()).broker.deduplication
        await first.unset("broker.deduplication")
        await first.unset("broker.deduplication")
        assert (first.values(), applied) == ({}, [True, False])
