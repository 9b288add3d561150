"""Stopping has a deadline: a topic that cannot close does not keep the process, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.protocol.entry import build_entry
from anabranch.storage.topic.topic_log import TopicLog

NAME = TopicName.parse("persistent://public/default/stuck")


def settings(directory: Path) -> NodeSettings:
    plain = NodeSettings()
    return replace(
        plain,
        network=replace(plain.network, port=0),
        http=replace(plain.http, port=0),
        storage=replace(plain.storage, dir=directory),
    )


class Sink:
    def __init__(self) -> None:
        self.persisted_entries = asyncio.Event()

    def persisted(self, ledger: int, entry: int, contexts: object) -> None:
        self.persisted_entries.set()

    def persist_failed(self, error: Exception, context: object) -> None:
        raise error


async def test_a_topic_that_cannot_close_is_recovered_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry, sink = build_entry(b"kept"), Sink()
    async with Node(settings(tmp_path), stop_seconds=0.2) as node:
        topic = await node.services.topics.get(NAME, create=True)
        topic.log.append(entry, 1, sink, None)  # type: ignore[union-attr]  # persistent
        async with asyncio.timeout(10):
            await sink.persisted_entries.wait()

        async def never(self: TopicLog) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(TopicLog, "close", never)
        caplog.set_level(logging.ERROR)
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 8, "the deadline counts, not the topic"
    assert "topics not closed in time" in caplog.text
    monkeypatch.undo()
    async with Node(settings(tmp_path)) as node:
        topic = await node.services.topics.get(NAME, create=False)
        log = topic.log  # type: ignore[union-attr]  # persistent
        found = await log.read(log.first_position, 10, 1 << 20, log.last_position)
        assert [bytes(one.payload) for one in found] == [entry]
