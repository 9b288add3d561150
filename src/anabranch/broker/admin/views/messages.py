"""Messages of a topic for people who look at it. No subscription is made and nothing is acknowledged.

Every segment (or partition) is read by the broker that serves it. `newest` reads from the ends of the logs; `page`
reads forward from a time or position, and its answer names the place of the next page in every log (`message_page`).
Reading is bounded: entries and bytes per segment, segments, and a preview of each payload.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.views import message_page
from anabranch.broker.services import Services
from anabranch.broker.topic.topic import Topic
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import BadRequest, NotAllowed, NotFound
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position
from anabranch.model.segment import backing_topic
from anabranch.protocol.entry import parts, split_batch
from anabranch.protocol.errors import BadEntry
from anabranch.storage.topic.topic_log import StoredEntry

COUNT_MAX = 200
BYTES_MAX = 1 << 20  # of the entries that one segment reads
SEGMENTS_MAX = 128  # the newest ones
PREVIEW_BYTES = 4096


class MessageBrowser:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._routing = OwnerRouting(services)

    async def newest(self, topic: str, count: int, segment: int | None) -> list[dict[str, Any]]:
        """At most `count`, the newest first: `id, segment, key, publishTimeMs, properties, size`, and `payload` (text)
        or `payloadBase64`, both cut at 4 KiB; `unreadable` says why a payload cannot be shown."""
        name = TopicName.parse(topic)
        sources = await self._sources(name, segment)
        found = await self._routing.call_each(list(sources), self.newest_here, count=min(count, COUNT_MAX))
        messages = [
            {**one, **message_page.origin(source, sources[source])}
            for source, some in zip(sources, found, strict=True)
            for one in some
        ]
        messages.sort(key=lambda one: one["publishTimeMs"], reverse=True)
        return messages[:count]

    async def page(
        self,
        topic: str,
        count: int,
        segment: int | None,
        *,
        time_ms: int = 0,
        position: str = "",
        after: str = "",
        preview: int = PREVIEW_BYTES,
    ) -> dict[str, Any]:
        """At most `count` messages, the oldest first, from the first one published at `time_ms` or later, from a
        position (of one log), or where another page ended (`after`, its `next`). `isEnd`: there are no more
        now. More than 4 KiB of a payload are given of one message alone (`preview`, with a position and a count of
        1)."""
        name = TopicName.parse(topic)
        sources = await self._sources(name, segment)
        starts = message_page.places_of(after)
        if preview > PREVIEW_BYTES and (not position or count != 1):
            raise BadRequest(f"a preview above {PREVIEW_BYTES} bytes needs a position and count=1")
        if position:
            if len(sources) != 1:
                raise BadRequest("a position is that of one log: give the segment, or one partition as the topic")
            starts = {label: message_page.Place.parse(position) for label in message_page.labels(list(sources.items()))}
        labels = message_page.labels(list(sources.items()))
        given = {
            str(source): str(starts.get(label, message_page.FIRST))
            for label, source in zip(labels, sources, strict=True)
            if starts
        }
        found = await self._routing.call_each(
            list(sources), self.page_here, count=min(count, COUNT_MAX), time_ms=time_ms, starts=given, preview=preview
        )
        origins = [message_page.origin(source, number) for source, number in sources.items()]
        return message_page.merged(dict(zip(labels, found, strict=True)), origins, count)

    async def count(self, topic: str, segment: int | None, time_ms: int) -> dict[str, int]:
        """Stored messages, and those `from` the first one published at `time_ms` or later on in each log."""
        sources = await self._sources(TopicName.parse(topic), segment)
        found = await self._routing.call_each(list(sources), self.count_here, time_ms=time_ms)
        return {name: sum(one[name] for one in found) for name in ("total", "from")}

    async def _sources(self, name: TopicName, segment: int | None) -> dict[TopicName, int | None]:
        """The topics that hold its messages, and their segment ids; None for those of a regular topic."""
        services = self._services()
        if name.domain is not Domain.TOPIC:
            partitions = await services.catalog.partitions(name)
            return {name.partition(index): None for index in range(partitions)} if partitions else {name: None}
        if services.scalable is None:
            raise NotAllowed("scalable topics are switched off on this broker")
        segments = (await services.scalable.record(name)).segments
        if segment is not None and segment not in segments:
            raise NotFound(f"{name} has no segment {segment}")
        ids = sorted(segments)[-SEGMENTS_MAX:] if segment is None else [segment]
        return {backing_topic(name, segments[one]): one for one in ids}

    @peer_call("messages.newest_here")
    async def newest_here(self, topic: str, count: int) -> list[dict[str, Any]]:
        """Of a topic or segment that this broker serves."""
        found = await self._kept(topic)
        messages: list[dict[str, Any]] = []
        for entry in reversed(await _newest_entries(found, count)):
            messages += reversed(_shown(entry))
            if len(messages) >= count:
                break
        return messages[:count]

    @peer_call("messages.page_here")
    async def page_here(
        self, topic: str, count: int, time_ms: int, starts: Mapping[str, str], preview: int
    ) -> dict[str, Any]:
        """Of a topic or segment that this broker serves: `messages`, where they begin (`at`), and whether there are
        `more`."""
        log = (await self._kept(topic)).log
        if topic in starts:
            start = message_page.Place.parse(starts[topic])
        else:
            first = await log.position_at_time(time_ms)
            start = message_page.Place(first.ledger, first.entry)
        messages: list[dict[str, Any]] = []
        at, last, left = Position(start.ledger, start.entry), log.last_position, BYTES_MAX
        while len(messages) < count and left > 0:
            some = await log.read(at, count - len(messages), left, last)
            if not some:
                break
            for entry in some:
                shown = _shown(entry, preview)
                messages += shown[start.index :] if entry.position == Position(start.ledger, start.entry) else shown
                left -= len(entry.payload)
            at = log.after(some[-1].position)
        return {"at": str(start), "messages": messages[:count], "more": len(messages) > count or at <= last}

    @peer_call("messages.count_here")
    async def count_here(self, topic: str, time_ms: int) -> dict[str, int]:
        """Of a topic or segment that this broker serves."""
        log = (await self._kept(topic)).log
        first, last = await log.position_at_time(time_ms), log.last_position
        return {
            "total": log.total_messages,
            "from": await log.messages_between(Position(first.ledger, first.entry - 1), last),
        }

    async def _kept(self, topic: str) -> Topic:
        found = await self._services().topics.get(TopicName.parse(topic), create=False)
        if not isinstance(found, Topic):
            raise NotAllowed(f"{topic} keeps no messages")
        return found


async def _newest_entries(topic: Topic, count: int) -> list[StoredEntry]:
    """The last entries, oldest first, of at most `BYTES_MAX` (and at least one)."""
    log, left, found = topic.log, count, list[StoredEntry]()
    for info in reversed(list(log.chain)):
        size = BYTES_MAX - sum(len(one.payload) for one in found)
        if left <= 0 or size <= 0 or not info.entries:
            continue
        start = Position(info.id, max(0, info.entries - left))
        read = await log.read(start, min(left, info.entries), size, Position(info.id, info.entries - 1))
        found = [*read, *found]
        left -= len(read)
    return found


def _shown(entry: StoredEntry, preview: int = PREVIEW_BYTES) -> list[dict[str, Any]]:
    place = f"{entry.position.ledger}:{entry.position.entry}"
    try:
        of, stored = parts(entry.payload)
    except BadEntry as error:
        unknown: dict[str, Any] = {"key": None, "publishTimeMs": 0, "properties": {}, "size": len(entry.payload)}
        return [{"id": place, **unknown, "unreadable": error.reason}]
    try:
        batch = split_batch(entry.payload)
    except BadEntry as error:
        known: dict[str, Any] = {"key": None, "publishTimeMs": of.publish_time, "properties": {}, "size": len(stored)}
        return [{"id": place, **known, "unreadable": error.reason}]
    version = int.from_bytes(of.schema_version, "big", signed=True) if len(of.schema_version) == 8 else None
    is_batch = of.HasField("num_messages_in_batch")
    return [
        {
            "id": f"{place}:{index}" if is_batch else place,
            "key": single.partition_key if single.HasField("partition_key") else None,
            "publishTimeMs": of.publish_time,
            "schemaVersion": version,
            "properties": {pair.key: pair.value for pair in single.properties},
            **({"payload": None, "size": 0} if single.null_value else _payload(data, preview)),
        }
        for index, (single, data) in enumerate(batch)
    ]


def _payload(data: bytes, preview: int) -> Mapping[str, Any]:
    shown = data[:preview]
    try:
        return {"payload": shown.decode("utf-8"), "size": len(data)}
    except UnicodeDecodeError as error:
        if error.start > preview - 4 and len(data) > preview:  # the cut went through a character
            return {"payload": shown[: error.start].decode("utf-8"), "size": len(data)}
        return {"payloadBase64": base64.b64encode(shown).decode(), "size": len(data)}
