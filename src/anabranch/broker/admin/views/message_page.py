"""Pages of messages over several logs: merges what the logs gave, and says where each of them goes on. Pure.

A *place* is where reading begins in one log: `ledger:entry:index`, the index of a message of a batch. The place of the
next page is one text with the place in every log, `LABEL@PLACE,…`; the label of a log is its segment, or the number of
its partition. A log that the text does not name is younger than the text, and is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.model.errors import BadRequest
from anabranch.model.names import TopicName

NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Place:
    ledger: int
    entry: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """`ledger:entry` or `ledger:entry:index`; raises BadRequest."""
        numbers = text.split(":")
        if len(numbers) not in (2, 3) or not all(one.isascii() and one.isdecimal() for one in numbers):
            raise BadRequest(f"a position is like 12:0 or 12:0:3, not {text!r}")
        if any(len(one) > 19 or int(one) > NUMBER_MAX for one in numbers):
            raise BadRequest(f"a position has numbers of 63 bits, not {text!r}")
        return cls(*map(int, numbers))

    @classmethod
    def after(cls, message_id: str) -> Place:
        """Behind a message: the next one of its batch, or the next entry."""
        found = cls.parse(message_id)
        if message_id.count(":") == 2:
            return cls(found.ledger, found.entry, found.index + 1)
        return cls(found.ledger, found.entry + 1)


FIRST = Place(0, 0)


def labels(sources: Sequence[tuple[TopicName, int | None]]) -> list[str]:
    """Of each log, in their order."""
    return [str(max(0, name.partition_index) if segment is None else segment) for name, segment in sources]


def origin(name: TopicName, segment: int | None) -> dict[str, int | None]:
    """What a message says of the log that it is in."""
    return {"segment": segment, "partition": name.partition_index if name.partition_index >= 0 else None}


def places_of(text: str) -> dict[str, Place]:
    """The place in every log, by label; empty for an empty text. Raises BadRequest."""
    found = {}
    for part in text.split(",") if text else ():
        label, mark, place = part.partition("@")
        if not mark or not (label.isascii() and label.isdecimal()):
            raise BadRequest(f"`after` is the `next` of another page, not {text[:80]!r}")
        found[label] = Place.parse(place)
    return found


def merged(
    found: Mapping[str, Mapping[str, Any]], origins: Sequence[Mapping[str, int | None]], count: int
) -> dict[str, Any]:
    """The first `count` messages by publish time; those of one log stay in its order. A log that has more messages than
    it gave ends the page when these are taken, because its next one may be older than those of the others."""
    logs = list(found.items())
    taken = [0] * len(logs)
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        heads = [
            (log["messages"][at]["publishTimeMs"], index)
            for index, ((_, log), at) in enumerate(zip(logs, taken, strict=True))
            if at < len(log["messages"])
        ]
        used_up = any(log["more"] and at >= len(log["messages"]) for (_, log), at in zip(logs, taken, strict=True))
        if not heads or used_up:
            break
        index = min(heads)[1]
        messages.append({**logs[index][1]["messages"][taken[index]], **origins[index]})
        taken[index] += 1
    places = {
        label: log["at"] if not at else str(Place.after(log["messages"][at - 1]["id"]))
        for (label, log), at in zip(logs, taken, strict=True)
    }
    is_end = not any(log["more"] or at < len(log["messages"]) for (_, log), at in zip(logs, taken, strict=True))
    return {
        "messages": messages,
        "next": ",".join(f"{label}@{place}" for label, place in places.items()),
        "isEnd": is_end,
    }
