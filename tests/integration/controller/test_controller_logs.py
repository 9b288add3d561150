"""What an operator sees of scalable topics at level INFO: changes of topics and leadership, not loads and unloads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.controller.service import ScalableTopicService
from anabranch.controller.topic.leader_terms import LeaderTerms
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.names import TopicName
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.node import serving

TOPIC = TopicName.parse("topic://public/default/t")


class Lines(logging.Handler):
    """Fields of the records of the controller, by event text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.of: dict[str, list[logging.LogRecord]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.of.setdefault(record.getMessage().split(" topic=")[0], []).append(record)

    def at_info(self, event: str) -> logging.LogRecord:
        (record,) = self.of[event]
        assert record.levelno == logging.INFO
        return record

    def shown(self) -> set[str]:
        return {event for event, records in self.of.items() if any(one.levelno >= logging.INFO for one in records)}


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("anabranch.controller")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_changes_of_a_topic_are_logged_at_info_with_their_fields(tmp_path: Path, lines: Lines) -> None:
    async with serving(tmp_path) as node:
        scalable = node.services.scalable
        assert isinstance(scalable, ScalableTopicService)
        await scalable.create(TOPIC, 1, {})
        await scalable.split(TOPIC, 0, reason="hot")
        await scalable.merge(TOPIC, (1, 2))
        await scalable.delete(TOPIC)
    created, deleted = lines.at_info("scalable topic created"), lines.at_info("scalable topic deleted")
    assert vars(created)["segments"] == 1
    assert vars(created)["topic"] == vars(deleted)["topic"] == str(TOPIC)
    split, merged = vars(lines.at_info("segment split")), vars(lines.at_info("segments merged"))
    assert (split["segments"], split["children"], split["reason"]) == ("0", "1,2", "hot")
    assert (merged["segments"], merged["children"], merged["reason"]) == ("1,2", "3", "requested")
    assert merged["epoch"] == split["epoch"] + 1
    assert min(split["ms"], merged["ms"]) >= 0
    assert lines.shown() == {
        "scalable topic created",
        "segment split",
        "segments merged",
        "scalable topic deleted",
    }


async def test_loads_and_unloads_are_logged_below_info(tmp_path: Path, lines: Lines) -> None:
    async with serving(tmp_path) as node:
        scalable = node.services.scalable
        assert isinstance(scalable, ScalableTopicService)
        await scalable.create(TOPIC, 1, {})
        for _ in range(3):
            await scalable.controllers.by_topic[TOPIC].close()
            await scalable.activate(TOPIC)
    assert len(lines.of["topic loaded, leading it"]) == 4
    assert len(lines.of["no longer leading topic"]) == 4
    assert lines.shown() == {"scalable topic created"}


async def test_changes_of_leadership_are_logged_at_info_with_a_reason(tmp_path: Path, lines: Lines) -> None:
    async with serving(tmp_path) as node:
        scalable = node.services.scalable
        assert isinstance(scalable, ScalableTopicService)
        await scalable.create(TOPIC, 1, {})
        scalable.controllers.by_topic[TOPIC].stop_leading("another broker leads it")
    assert vars(lines.at_info("no longer leading topic"))["reason"] == "another broker leads it"


async def test_term_after_one_of_another_broker_is_logged_as_a_takeover(lines: Lines) -> None:
    store = MemoryStore(SystemClock())
    await store.open()
    term = await LeaderTerms(store, "b1").acquire(TOPIC, 0)
    await LeaderTerms(store, "b1").acquire(TOPIC, term)  # after a restart or an unload
    assert lines.shown() == set()
    await LeaderTerms(store, "b2").acquire(TOPIC, term + 1)
    taken = vars(lines.at_info("leadership of a topic taken over from another broker"))
    assert (taken["broker"], taken["term"]) == ("b1", term + 2)
    await store.close()
