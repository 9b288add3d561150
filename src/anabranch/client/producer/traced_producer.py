"""A producer with tracing: a span per call, whose context is in the properties of its messages.

A separate class, so that a producer without tracing does not check whether tracing is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from anabranch.client.context import ClientContext
from anabranch.client.messages.message import MessageId
from anabranch.client.producer.bulk_send import Sent
from anabranch.client.producer.options import ProducerOptions
from anabranch.client.producer.producer import Producer
from anabranch.client.topic.layout_watch import LayoutWatches
from anabranch.client.tracing.tracing import EndSpan, Tracing
from anabranch.model.names import TopicName
from anabranch.protocol.codec.column import is_arrow


class TracedProducer(Producer):
    """Like its base in everything else; see there."""

    def __init__(
        self,
        topic: TopicName,
        options: ProducerOptions,
        context: ClientContext,
        watches: LayoutWatches,
        tracing: Tracing,
    ) -> None:
        super().__init__(topic, options, context, watches)
        self._tracing = tracing

    async def send(self, value: Any, *, properties: Mapping[str, str] | None = None, **options: Any) -> MessageId:
        carried, end = self._tracing.send(self.topic, 1)
        try:
            stored = await super().send(value, properties=_with(properties, carried), **options)
        except BaseException as error:
            end(error)
            raise
        end(None)
        return stored

    def send_nowait(
        self, value: Any, *, properties: Mapping[str, str] | None = None, **options: Any
    ) -> asyncio.Future[MessageId]:
        carried, end = self._tracing.send(self.topic, 1)
        try:
            stored = super().send_nowait(value, properties=_with(properties, carried), **options)
        except BaseException as error:
            end(error)
            raise
        stored.add_done_callback(partial(_ended, end))
        return stored

    async def send_batch(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None = None,
        *,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        **options: Any,
    ) -> Sent:
        carried, end = self._tracing.send(self.topic, len(values))
        try:
            stored = await super().send_batch(
                values, keys, properties=_rows_with(properties, len(values), carried), **options
            )
        except BaseException as error:
            end(error)
            raise
        end(None)
        return stored

    def send_batch_nowait(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None = None,
        *,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        **options: Any,
    ) -> asyncio.Future[Sent]:
        carried, end = self._tracing.send(self.topic, len(values))
        try:
            stored = super().send_batch_nowait(
                values, keys, properties=_rows_with(properties, len(values), carried), **options
            )
        except BaseException as error:
            end(error)
            raise
        stored.add_done_callback(partial(_ended, end))
        return stored


def _with(properties: Any, carried: Mapping[str, str]) -> Any:
    """Invalid properties are left to the checks of the producer."""
    if not carried or not (properties is None or isinstance(properties, Mapping)):
        return properties
    return {**(properties or {}), **carried}


def _rows_with(properties: Any, rows: int, carried: Mapping[str, str]) -> Any:
    if not carried:
        return properties
    if properties is None:
        return [carried] * rows
    if is_arrow(properties):
        properties = [None if row is None else dict(row) for row in properties.to_pylist()]
    return [_with(row, carried) for row in properties]


def _ended(end: EndSpan, future: asyncio.Future[Any]) -> None:
    end(asyncio.CancelledError() if future.cancelled() else future.exception())
