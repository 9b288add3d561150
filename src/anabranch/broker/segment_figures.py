"""What the owner of a segment can say of it in numbers: rates over 10 and 60 seconds, backlogs, who is attached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.broker.sampling import TopicBook
from anabranch.broker.topic import Topic

WINDOWS = (10, 60)
"""Seconds."""


async def segment_figures(topic: Topic, book: TopicBook, now: float) -> dict[str, Any]:
    """Plain values, under the names that `rest.scalable_face` promises. `book` was looked at just now."""
    over = {seconds: book.meter.rates_over(now, book.totals, float(seconds)) for seconds in WINDOWS}

    def rate(index: int) -> Mapping[str, float]:
        return {str(seconds): rates[index] for seconds, rates in over.items()}

    durable = {name: one for name, one in topic.subscriptions.items() if one.is_durable}
    stored = topic.log.stats()
    return {
        "rates": {
            "in": {"msg": rate(0), "bytes": rate(1)},
            "out": {"msg": rate(2), "bytes": rate(3)},
        },
        "messages": stored.messages,
        "bytes": stored.bytes,
        "backlog": {name: await one.backlog_messages() for name, one in sorted(durable.items())},
        "consumers": sum(len(one.consumers) for one in topic.subscriptions.values()),
        "producers": len(topic.producers),
    }
