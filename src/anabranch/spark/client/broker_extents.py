"""Extents of Anabranch's own brokers: one question, TOPIC_EXTENT."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from anabranch.client.connection.connection import Connection
from anabranch.client.errors import TopicNotFound
from anabranch.model.position import EARLIEST
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.spark.client.extents import ANABRANCH, Extent
from anabranch.spark.offsets.topic_view import LedgerSum


class BrokerExtents:
    capabilities = ANABRANCH

    def __init__(self, serving: Callable[[str], Awaitable[Connection]], timeout_s: float) -> None:
        self._serving = serving
        self._timeout_s = timeout_s

    async def extent(self, topic: str, fields: Mapping[str, Any]) -> Extent:
        connection = await self._serving(topic)
        return read_extent(await connection.ask(BaseCommand.TOPIC_EXTENT, self._timeout_s, topic=topic, **fields))

    async def deduplicates(self, topic: str) -> bool:
        try:
            return (await self.extent(topic, {})).deduplicates
        except TopicNotFound:  # it is created by the first producer
            return True

    async def close(self) -> None:
        """Nothing is kept."""


def read_extent(answer: pb.CommandTopicExtentResponse) -> Extent:
    return Extent(
        position_of(answer.first),
        position_of(answer.end),
        position_of(answer.trimmed_to) if answer.HasField("trimmed_to") else EARLIEST,
        answer.terminated,
        answer.incarnation,
        answer.deduplicates,
        answer.messages,
        answer.bytes,
        position_of(answer.upto) if answer.HasField("upto") else EARLIEST,
        position_of(answer.at_time) if answer.HasField("at_time") else EARLIEST,
        answer.messages_to_time,
        tuple(LedgerSum(one.ledger_id, one.entries, one.messages, one.bytes) for one in answer.ledgers),
    )
